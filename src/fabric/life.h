// Seeing the death of another process through a descriptor, without guessing a process id.
#pragma once

#include "fabric/descriptor.h"

namespace tide::fabric {

struct Life {
  Descriptor watched;  // to be sent to peers; polls as readable or hung up once this process has ended
  Descriptor kept;     // closed by the end of this process; unused with a pidfd
};

// A pidfd of this process. Where the kernel has none (before Linux 5.3, or filtered), the read end of a pipe that ends
// with this process and all its children, and one warning on stderr.
Life open_life();

bool ended(short revents);  // of a watched descriptor, polled for POLLIN

}  // namespace tide::fabric
