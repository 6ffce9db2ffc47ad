#!/usr/bin/env bash
# Builds the reference of the public headers into build/docs/html.
set -uo pipefail
cd "$(dirname "$0")/.."

if ! command -v doxygen >/dev/null; then
    echo "docs: left out: the reference (Doxygen is not installed); the pages of docs/ read as they are"
    exit 0
fi
mkdir -p build/docs
doxygen docs/Doxyfile && echo "docs: build/docs/html/index.html"
