"""What runs where, and why: the result of enable() and explain()."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

HEADINGS = ("group", "tensors", "all-gather", "reduce-scatter", "landing", "bytes", "why stock")


@dataclass(frozen=True)
class Row:
    group: str
    tensors: int
    all_gather: str  # "tide" or "stock"
    reduce_scatter: str  # "tide", "stock" or "none" (no trainable parameter)
    landing: str  # "resident", "ring", "private", or "-" where nothing is gathered by TIDE
    bytes: int  # of the group's landing, once a machine ("private": once a rank)
    why: str  # why a half runs on stock; empty if neither does


@dataclass(frozen=True)
class Table:
    rows: tuple[Row, ...]
    memory_bytes: int = 0  # of all sessions on this machine; 0 before enable()

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, group: str) -> Row:
        for row in self.rows:
            if row.group == group:
                return row
        raise KeyError(group)

    def __str__(self) -> str:
        cells = [HEADINGS] + [
            (r.group, str(r.tensors), r.all_gather, r.reduce_scatter, r.landing, human(r.bytes), r.why or "-")
            for r in self.rows
        ]
        widths = [max(len(row[c]) for row in cells) for c in range(len(HEADINGS))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
        ]
        if self.memory_bytes:
            lines.append(f"shared memory of this machine: {human(self.memory_bytes)}")
        return "\n".join(lines)


def human(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
