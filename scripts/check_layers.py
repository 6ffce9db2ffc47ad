#!/usr/bin/env python3
"""Checks that includes point only upwards in the list of layers, so that a layer can be read without those below it."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# From top to bottom: layer, its public headers, its folder in src. A layer may include itself and what stands above.
# The vocabulary of programs (operations, regions, counters) stands above the plan, whose tables are made of it; the
# builders stand below, since they read a plan.
LAYERS = [
    ("base", {"error", "dtype", "version"}, None),
    ("layout", {"group_file", "layout", "models"}, "layout"),
    ("vocabulary", {"program"}, None),
    ("plan", {"plan"}, "plan"),
    ("program", {"collectives"}, "program"),
    ("script", {"script"}, "script"),
    ("verify", {"execute", "verify"}, "verify"),
    ("fabric", {"session"}, "fabric"),
    ("runtime/host", set(), "runtime/host"),
    ("cli", set(), "cli"),
]
LEVEL = {name: level for level, (name, _, _) in enumerate(LAYERS)}
# A fabric moves bytes and counters and knows nothing of what they are for.
FABRIC_MAY_NOT = {"vocabulary", "plan", "program", "script", "verify"}

INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]')


def layer_of(path: str) -> str | None:
    """The layer of an include path or of a file's path from include/ or src/; None for what is not ours."""
    if path.startswith("tide/"):
        stem = path.removeprefix("tide/").removesuffix(".h")
        return next((name for name, headers, _ in LAYERS if stem in headers), "?")
    for name, _, folder in LAYERS:
        if folder and path.startswith(folder + "/"):
            return name
    return "?" if (ROOT / "src" / path).exists() else None


def complaints(file: pathlib.Path) -> list[str]:
    inside = file.relative_to(ROOT)
    own = layer_of("/".join(inside.parts[1:]))
    if own in (None, "?"):
        return [f"{inside}: belongs to no layer: put it into one, or add its layer to scripts/check_layers.py"]
    found = []
    for number, line in enumerate(file.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        other = layer_of(match[1]) if match else None
        if other is None:
            continue
        place = f"{inside}:{number}: {match[1]}"
        if other == "?":
            found.append(f"{place} belongs to no layer: add it to scripts/check_layers.py")
        elif LEVEL[other] > LEVEL[own]:
            found.append(f"{place} is of layer {other}, below {own}")
        elif own == "fabric" and other in FABRIC_MAY_NOT and inside.parts[0] == "src":
            found.append(f"{place} is of layer {other}, and a fabric knows no {other}")
        elif inside.parts[0] == "include" and not match[1].startswith("tide/"):
            found.append(f"{place} is private, and this header is public")
    return found


def main() -> int:
    files = sorted(f for top in ("include", "src") for f in (ROOT / top).rglob("*") if f.suffix in (".h", ".cc"))
    found = [line for file in files for line in complaints(file)]
    print("\n".join(found) if found else f"layers: {len(files)} files include only what stands above them")
    return 1 if found or not files else 0


if __name__ == "__main__":
    sys.exit(main())
