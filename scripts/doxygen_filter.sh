#!/bin/sh
# Our headers carry plain comments; this gives Doxygen the marks by which it knows them: the opening one is of the file,
# a comment above is of what follows, one behind (or far to the right) of what stands before it.
exec sed -E -e '1i /// @file' -e 's|^( {0,12})// |\1/// |' -e 's|^( {13,})// |\1///< |' -e 's|([^ /]) +// |\1  ///< |' "$1"
