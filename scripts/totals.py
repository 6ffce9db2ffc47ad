#!/usr/bin/env python3
"""Sums the JUnit reports (*.xml) and stages.tsv of a folder into the line "N passed, N failed, N skipped".

Names what failed and what was skipped as a whole before that line. Exit status 1 when anything failed or nothing ran.
"""

import pathlib
import sys
import xml.etree.ElementTree as ElementTree


def outcome(case: ElementTree.Element) -> str:
    """The outcome of one test case; CTest states it in an attribute, pytest by a child element."""
    if case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail":
        return "failed"
    skipped = case.find("skipped")
    if skipped is not None and "Unable to find executable" in skipped.get("message", ""):
        return "failed"
    if skipped is not None or case.get("status") in ("notrun", "disabled"):
        return "skipped"
    return "passed"


def main() -> int:
    if len(sys.argv) != 2 or not pathlib.Path(sys.argv[1]).is_dir():
        print("totals: give the folder of the reports", file=sys.stderr)
        return 2
    folder = pathlib.Path(sys.argv[1])
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for report in sorted(folder.glob("*.xml")):
        for case in ElementTree.parse(report).iter("testcase"):
            result = outcome(case)
            counts[result] += 1
            if result == "failed":
                print(f"failed: {report.stem}: {case.get('name')}")
    stages = folder / "stages.tsv"
    for line in stages.read_text().splitlines() if stages.exists() else []:
        stage, result, reason = line.split("\t")
        counts[result] += 1
        if result != "passed":
            print(f"{result}: {stage}: {reason}")
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 0 if counts["failed"] == 0 and counts["passed"] > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
