#!/usr/bin/env bash
# Rewrites the C++ and Python sources in the project's format.
set -uo pipefail
cd "$(dirname "$0")/.."

missing=0
if [ -x .venv/bin/clang-format ]; then
    git ls-files --cached --others --exclude-standard '*.cc' '*.h' | sort -u | xargs -r ls 2>/dev/null |
        xargs -r .venv/bin/clang-format -i
else
    echo "format: left out: C++ (the pinned clang-format is not in .venv; make setup installs it)" && missing=1
fi
if [ -x .venv/bin/ruff ]; then
    .venv/bin/ruff check -q --fix . ; .venv/bin/ruff format -q .
else
    echo "format: left out: Python (ruff is not in .venv; make setup installs it)" && missing=1
fi
exit $missing
