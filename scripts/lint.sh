#!/usr/bin/env bash
# Every check that needs no run: format, ruff, layers, text, clang-tidy. Goes through all of them, then fails if one did.
# A checker that is not installed is named and counted as left out, not as passed.
set -uo pipefail
cd "$(dirname "$0")/.."

jobs=${JOBS:-2}
failed=()
check() {
    local name=$1 begin=$SECONDS
    shift
    "$@" || failed+=("$name")
    echo "lint: $name: $((SECONDS - begin)) s"
}

# The first of these commands that exists.
tool() {
    local name
    for name in "$@"; do
        command -v "$name" && return
    done
    return 1
}

mapfile -t cpp < <(git ls-files --cached --others --exclude-standard '*.cc' '*.h' | sort -u | while read -r f; do [ -e "$f" ] && echo "$f"; done)
mapfile -t units < <(printf '%s\n' "${cpp[@]}" | grep -E '^(src|bench|examples)/.*\.cc$')
if [ -n "${CHANGED:-}" ]; then
    # What differs from the last commit, for a quick look while writing.
    mapfile -t units < <(printf '%s\n' "${units[@]}" | grep -xFf <(git status --porcelain -uall | cut -c 4-))
fi

if format=$(tool .venv/bin/clang-format clang-format-14 clang-format clang-format-19); then
    check "C++ format" "$format" --dry-run -Werror "${cpp[@]}"
else
    echo "lint: left out: C++ format (no clang-format; make setup installs it)"
fi
if [ -x .venv/bin/ruff ]; then
    check "Python" .venv/bin/ruff check -q .
    check "Python format" .venv/bin/ruff format --check -q .
else
    echo "lint: left out: Python (no ruff in .venv; make setup installs it)"
fi
check "layers" scripts/check_layers.py
check "text" scripts/check_text.py

# One file to a process, `jobs` processes; what system headers would be warned of is only counted, and not printed.
# The commands are the compiler's, which may know warnings that Clang does not.
tidy_units() {
    export tidy
    printf '%s\n' "${units[@]}" | xargs -r -P "$jobs" -I FILE \
        bash -c '"$tidy" --quiet -p build/release --extra-arg=-Wno-unknown-warning-option FILE 2>&1 || echo "clang-tidy: FILE failed"' |
        grep --line-buffered -vE 'warnings? generated\.$|^Suppressed|^Use -header-filter' | tee build/clang-tidy.log
    ! grep -q '^clang-tidy: .* failed$' build/clang-tidy.log
}
if tidy=$(tool clang-tidy-14 clang-tidy clang-tidy-19); then
    [ -e build/release/compile_commands.json ] || cmake --preset release >/dev/null
    [ ${#units[@]} -eq 0 ] || check "clang-tidy" tidy_units
else
    echo "lint: left out: clang-tidy (not installed; make setup installs it)"
fi

if [ ${#failed[@]} -gt 0 ]; then
    echo "lint: failed: $(printf '%s, ' "${failed[@]}" | sed 's/, $//')" >&2
    exit 1
fi
echo "lint: clean"
