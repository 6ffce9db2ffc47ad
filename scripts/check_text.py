#!/usr/bin/env python3
"""Checks the project's text: ASCII, no trailing blanks, a newline at the end, and no broken link between its pages."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SUFFIXES = {".cc", ".h", ".py", ".md", ".txt", ".cmake", ".in", ".json", ".toml", ".sh", ".yml", ""}
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def project_files() -> list[pathlib.Path]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    files = (ROOT / name for name in listed.split("\0") if name)
    return sorted(f for f in files if f.suffix in SUFFIXES and f.is_file() and not f.is_symlink())


def anchors(page: str) -> set[str]:
    """The anchors of a page's headings, spelled as code hosts spell them."""
    headings = re.findall(r"^#+\s+(.*)$", FENCE.sub("", page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


def complaints(file: pathlib.Path) -> list[str]:
    name = file.relative_to(ROOT)
    try:
        text = file.read_bytes().decode("ascii")
    except UnicodeDecodeError as error:
        line = file.read_bytes()[: error.start].count(b"\n") + 1
        return [f"{name}:{line}: a byte that is not ASCII"]
    lines = enumerate(text.split("\n"), 1)
    found = [f"{name}:{number}: blanks at the end of the line" for number, line in lines if line != line.rstrip()]
    if text and not text.endswith("\n"):
        found.append(f"{name}: no newline at the end")
    if file.suffix == ".md":
        for target in LINK.findall(FENCE.sub("", text)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            page = (file.parent / path).resolve() if path else file
            if not page.exists():
                found.append(f"{name}: the link {target} leads nowhere")
            elif anchor and page.suffix == ".md" and anchor not in anchors(page.read_text()):
                found.append(f"{name}: the link {target} names no heading of {page.name}")
    return found


def main() -> int:
    files = project_files()
    found = [line for file in files for line in complaints(file)]
    print("\n".join(found) if found else f"text: {len(files)} files are plain ASCII and their links hold")
    return 1 if found or not files else 0


if __name__ == "__main__":
    sys.exit(main())
