#!/usr/bin/env bash
# Runs the micro-benchmarks and the scripts of bench/, one after the other, on an otherwise idle machine.
set -uo pipefail
cd "$(dirname "$0")/.."

python=.venv/bin/python
export PATH=$PWD/build/release:$PATH PYTHONPATH=python
ran=0
failed=0
run() {
    echo "== $*"
    "$@" || failed=$((failed + 1))
    ran=$((ran + 1))
}
for benchmark in build/release/bench_*; do
    [ -x "$benchmark" ] && run "$benchmark"
done
for script in bench/*.py; do
    [ -e "$script" ] || continue
    if $python -c "import torch" 2>/dev/null; then
        run $python "$script"
    else
        echo "bench: left out: $script (PyTorch is not in .venv; make setup installs it)"
    fi
done
echo "bench: $ran ran, $failed failed"
[ $ran -gt 0 ] && [ $failed -eq 0 ]
