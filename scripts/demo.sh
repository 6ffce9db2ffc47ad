#!/usr/bin/env bash
# The demonstration: training with and without TIDE where PyTorch is there, else the C++ example on several processes.
set -uo pipefail
cd "$(dirname "$0")/.."

python=.venv/bin/python
export PATH=$PWD/build/release:$PATH PYTHONPATH=python
if [ -d python/tide/demo ] && compgen -G "python/tide/_tide*.so" >/dev/null && $python -c "import torch" 2>/dev/null; then
    exec $python -m tide.demo
fi
echo "demo: left out: training with FSDP2 (PyTorch or the Python module is not there; make setup tries again)"

examples=(build/release/example_*)
if [ ! -x "${examples[0]}" ] || [ ! -x build/release/tide ]; then
    echo "demo: there is no C++ example to run either; the build named what it left out" >&2
    exit 1
fi
for example in "${examples[@]}"; do
    echo "demo: tide launch --ranks 4 -- $example"
    build/release/tide launch --ranks 4 -- "$example" || exit 1
done
