#!/usr/bin/env bash
# What takes too long for every change: all C++ tests under both sets of sanitizers, and long property tests.
set -uo pipefail
cd "$(dirname "$0")/.."

jobs=${JOBS:-$(nproc)}
python=.venv/bin/python
failed=()
for preset in asan tsan; do
    echo "== $preset"
    cmake --preset $preset >/dev/null && cmake --build --preset $preset -j "$jobs" &&
        ctest --preset $preset -j "$jobs" --timeout 600 || failed+=("$preset")
done
if $python -c "import pytest" 2>/dev/null && compgen -G "python/tide/_tide*.so" >/dev/null; then
    echo "== property tests"
    PYTHONPATH=python PATH=$PWD/build/release:$PATH TIDE_NIGHTLY=1 $python -m pytest tests/python || failed+=("property tests")
else
    echo "nightly: left out: property tests (pytest or the Python module is not there; make setup tries again)"
fi
if [ ${#failed[@]} -gt 0 ]; then
    echo "nightly: failed: ${failed[*]}" >&2
    exit 1
fi
echo "nightly: clean"
