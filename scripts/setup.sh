#!/usr/bin/env bash
# Gets what the build, the tests and the checks need: scripts/setup.sh [--retry] [core] [python] [lint] [docs]
#
#   core    compiler, CMake and the libraries, from the system's packages (Debian 12 or 13, as root)
#   python  .venv with the packages of requirements.txt
#   lint    clang-tidy from the system's packages, ruff and clang-format in .venv
#   docs    Doxygen from the system's packages
#
# Quick when there is nothing to do. A package that could not be had is named and not tried again until --retry.
# TIDE_OFFLINE=1 fetches nothing. Exit status: 1 only when the C++ core cannot be built.
set -uo pipefail
cd "$(dirname "$0")/.."

retry=no
groups=()
for argument in "$@"; do
    case $argument in
        --retry) retry=yes ;;
        core | python | lint | docs) groups+=("$argument") ;;
        *) echo "setup: '$argument' is not one of core, python, lint, docs, --retry" >&2 && exit 2 ;;
    esac
done
[ ${#groups[@]} -gt 0 ] || groups=(core python lint docs)
offline=${TIDE_OFFLINE:-0}

say() { echo "setup: $*"; }

# --- System packages ------------------------------------------------------------------------------------------------
updated=no
refused=build/.setup-refused # one line a package that the system's package manager did not give

# The first name that the package lists know.
first_known() {
    for name in "$@"; do
        if apt-cache show "$name" >/dev/null 2>&1; then
            echo "$name" && return
        fi
    done
    echo "$1"
}

update_lists() {
    [ $updated = no ] || return 0
    updated=yes
    say "reading the package lists"
    apt-get update -qq >/dev/null 2>&1 || say "the package lists could not be read; using what is known"
}

# need WHAT PROBE PACKAGE [PACKAGE...]: installs the first known package unless the command PROBE succeeds.
need() {
    local what=$1 probe=$2
    shift 2
    bash -c "$probe" >/dev/null 2>&1 && return 0
    if [ "$offline" != 0 ]; then
        say "$what is missing and TIDE_OFFLINE is set (package $1)"
        return 1
    fi
    if ! command -v apt-get >/dev/null; then
        say "$what is missing: install it with this system's package manager (Debian calls it $1)"
        return 1
    fi
    if [ "$(id -u)" != 0 ]; then
        say "$what is missing: as root, run apt-get install $1"
        return 1
    fi
    if [ $retry = no ] && grep -qx "$1" $refused 2>/dev/null; then
        say "$what is missing: $1 could not be installed before (make setup tries again)"
        return 1
    fi
    update_lists
    local package
    package=$(first_known "$@")
    say "installing $package"
    if ! DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >/dev/null 2>&1 ||
        ! bash -c "$probe" >/dev/null 2>&1; then
        mkdir -p build && echo "$1" >>$refused
        say "$what is missing: $package could not be installed"
        return 1
    fi
}

setup_core() {
    local before=$missing
    need "a C++20 compiler" "command -v c++" g++ || missing=yes
    need "make" "command -v make" make || missing=yes
    need "CMake" "command -v cmake" cmake || missing=yes
    need "Ninja" "command -v ninja" ninja-build || missing=yes
    need "pkg-config" "command -v pkg-config" pkg-config || missing=yes
    need "fmt" "pkg-config --exists fmt" libfmt-dev || missing=yes
    need "nlohmann-json" "test -e /usr/include/nlohmann/json.hpp || pkg-config --exists nlohmann_json" nlohmann-json3-dev || missing=yes
    need "Highway" "pkg-config --exists libhwy" libhwy-dev || missing=yes
    need "CLI11" "test -e /usr/include/CLI/CLI.hpp || pkg-config --exists CLI11" libcli11-dev
    need "GoogleTest" "pkg-config --exists gtest_main" libgtest-dev
    need "Google Benchmark" "pkg-config --exists benchmark" libbenchmark-dev
    [ "$missing" = "$before" ] || say "the C++ core cannot be built without what is named above"
}

# --- Python packages ------------------------------------------------------------------------------------------------
# Any Python from 3.11 on that can compile extension modules and make environments.
with_headers='import sys, sysconfig, os
sys.exit(sys.version_info < (3, 11) or not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))'
usable_python="import ensurepip, venv
$with_headers"

make_environment() {
    if [ -d .venv ] && [ ! -L .venv ] && ! grep -qF "$PWD/.venv" .venv/bin/activate 2>/dev/null; then
        say "this folder has moved since .venv was made, or it is incomplete: making it again"
        rm -rf .venv
    fi
    [ -x .venv/bin/python ] && return 0
    need "Python 3.11 or later with its headers" "python3 -c '$with_headers' || /usr/bin/python3 -c '$with_headers'" \
        python3-dev || return 1
    need "Python's venv" "python3 -c '$usable_python' || /usr/bin/python3 -c '$usable_python'" python3-venv || return 1
    local python
    for python in python3 /usr/bin/python3; do
        if $python -c "$usable_python" 2>/dev/null; then
            say "making .venv with $($python --version)"
            $python -m venv .venv && return 0
        fi
    done
    return 1
}

pip_install() { .venv/bin/python -m pip install -q --disable-pip-version-check --retries 2 "$@"; }

# install_requirements FILE: everything in one go, else one by one so that a single absence costs only itself.
install_requirements() {
    local file=$1 stamp
    stamp=.venv/installed-${file%.txt}
    local sum
    sum=$(sha256sum <"$file")
    if [ -e "$stamp" ] && [ "$(head -n 1 "$stamp")" = "$sum" ]; then
        [ "$(wc -l <"$stamp")" = 1 ] && return 0
        if [ $retry = no ] || [ "$offline" != 0 ]; then
            say "not in .venv: $(tail -n +2 "$stamp" | paste -sd ' ') (make setup tries again)"
            return 0
        fi
    fi
    if [ "$offline" != 0 ]; then
        say "TIDE_OFFLINE is set: nothing of $file was installed into .venv"
        return 0
    fi
    say "installing $file into .venv"
    # PyTorch's default build for Linux brings gigabytes of CUDA; the CPU build serves where an index has it.
    local torch
    torch=$(grep -E '^torch==' "$file")
    if [ -n "$torch" ] && ! pip_install "$torch+cpu" >/dev/null 2>&1; then
        say "no CPU-only build of $torch is to be had; taking the default one"
    fi
    echo "$sum" >"$stamp.new"
    if ! pip_install -r "$file" >/dev/null 2>&1; then
        local requirement
        grep -E '^[a-z]' "$file" | while read -r requirement; do
            pip_install "$requirement" >/dev/null 2>&1 || echo "$requirement" >>"$stamp.new"
        done
        say "could not be installed into .venv: $(tail -n +2 "$stamp.new" | paste -sd ' ')"
    fi
    mv "$stamp.new" "$stamp"
}

setup_python() {
    if make_environment; then
        install_requirements requirements.txt
    else
        say "there is no usable Python: the Python module, its tests and the demo are left out"
    fi
}

setup_lint() {
    need "git" "command -v git" git
    need "clang-tidy" "compgen -c clang-tidy" clang-tidy-14 clang-tidy-19 clang-tidy
    if make_environment; then
        install_requirements requirements-lint.txt
    fi
    [ -x .venv/bin/clang-format ] || need "clang-format" "compgen -c clang-format" clang-format-14 clang-format-19 clang-format
}

missing=no
for group in "${groups[@]}"; do
    case $group in
        core) setup_core ;;
        python) setup_python ;;
        lint) setup_lint ;;
        docs) need "Doxygen" "command -v doxygen" doxygen ;;
    esac
done
[ $missing = no ]
