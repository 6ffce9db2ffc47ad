#!/usr/bin/env bash
# Runs every test there is something to run with, and ends in one line of totals.
#
# Reports (JUnit) and the stages that have none go to build/reports; scripts/totals.py sums them. A stage that cannot run
# counts as skipped and says why; a stage that breaks counts as failed, and the later ones still run.
set -uo pipefail
cd "$(dirname "$0")/.."

jobs=${JOBS:-$(nproc)}
python=.venv/bin/python
reports=$PWD/build/reports
rm -rf "$reports"
mkdir -p "$reports"

record() { printf '%s\t%s\t%s\n' "$1" "$2" "$3" >>"$reports/stages.tsv"; } # stage, outcome, reason
has_module() { $python -c "import $1" 2>/dev/null; }

# stage NAME REPORT COMMAND...: a command that fails although its report shows no failure has failed in itself.
stage() {
    local name=$1 report=$reports/$2 begin=$SECONDS
    shift 2
    echo "== $name"
    if ! "$@" && ! grep -qE '<failure|<error|Unable to find executable' "$report" 2>/dev/null; then
        record "$name" failed "could not be built or run; see above"
    elif ! grep -q '<testcase' "$report" 2>/dev/null; then
        record "$name" failed "no test ran"
    fi
    echo "== $name: $((SECONDS - begin)) s"
}

cpp_tests() {
    ctest --preset release -j "$jobs" --output-junit "$reports/cpp.xml" 2>&1 | grep -vE '^ *[0-9]+/[0-9]+ .*Passed|^ +Start +[0-9]+:'
    return "${PIPESTATUS[0]}"
}

sanitized_tests() {
    cmake --preset asan >"$reports/asan.log" 2>&1 &&
        cmake --build --preset asan -j "$jobs" --target core_tests >>"$reports/asan.log" 2>&1 || {
        tail -n 40 "$reports/asan.log"
        return 1
    }
    ctest --preset asan -L core -j "$jobs" --output-junit "$reports/asan.xml" 2>&1 | grep -vE '^ *[0-9]+/[0-9]+ .*Passed|^ +Start +[0-9]+:'
    return "${PIPESTATUS[0]}"
}

python_tests() {
    PYTHONPATH=python PATH=$PWD/build/release:$PATH timeout 1200 $python -m pytest tests/python --junitxml="$reports/python.xml"
}

stage "C++ tests" cpp.xml cpp_tests
stage "C++ tests under sanitizers" asan.xml sanitized_tests
if ! compgen -G "tests/python/test_*.py" >/dev/null; then
    record "Python tests" skipped "tests/python has none"
elif ! has_module pytest; then
    record "Python tests" skipped "pytest is not in .venv; make setup installs it"
elif ! compgen -G "python/tide/_tide*.so" >/dev/null; then
    record "Python tests" skipped "the Python module was not built"
else
    has_module torch || record "Python tests that train" skipped "PyTorch is not in .venv; make setup installs it"
    stage "Python tests" python.xml python_tests
fi

if [ "${TIDE_TOTALS:-yes}" = no ]; then
    scripts/totals.py "$reports" >/dev/null
else
    scripts/totals.py "$reports"
fi
