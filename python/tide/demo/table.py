"""The comparison for a reader."""

from __future__ import annotations

from tide.demo.results import Results, Row

HEADINGS = ("tokens", "run", "step (quartiles)", "communication", "compute", "bound", "memory", "stock/TIDE")


def _cells(row: Row, ratio: float | None) -> tuple[str, ...]:
    return (
        f"{row.tokens:,}",
        row.impl,
        f"{row.step_s:.2f} s ({row.step_low_s:.2f} to {row.step_high_s:.2f})",
        f"{row.communication_s:.2f} s",
        f"{row.compute_share:.0%}",
        f"{row.bound:.1f}x ({row.cpu_bound:.1f}x)" if row.impl == "stock" else "",
        "" if row.peak_bytes is None else f"{row.peak_bytes / 2**20:.0f} MiB",
        f"{ratio:.2f}x" if ratio and row.impl == "tide" else "",
    )


def table(results: Results) -> str:
    cells = [HEADINGS] + [_cells(row, results.ratio(row.tokens)) for row in results.rows]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADINGS))]
    lines = []
    for line in cells:
        padded = [
            cell.ljust(width) if column == 1 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def notes(results: Results, other_cores: float) -> list[str]:
    said = [
        "communication: mean of the ranks' time inside FSDP2's all-gather, copy-out, reshard and reduce; "
        "compute: the rest, as a share of the step",
        "bound: stock's step without its communication, by time (by CPU time, which holds no waiting for other ranks)",
    ]
    if any(row.peak_bytes is not None for row in results.rows):
        said.append(
            "memory: peak of all ranks together over what they took before the model was built, shared pages counted "
            "once, sampled in steps that are not timed"
        )
    difference = results.loss_difference()
    if difference is not None:
        stock, tide = results.losses["stock"], results.losses["tide"]
        said.append(
            f"loss after {len(stock)} steps: stock {stock[-1]:.4f}, TIDE {tide[-1]:.4f} (from {stock[0]:.4f}); largest "
            f"difference at one step {difference:.1e} (gloo adds in another order; --check-bits compares all bits)"
        )
    if other_cores > 0.1:
        said.append(f"other work used {other_cores:.1f} cores meanwhile, so times are too long")
    return said
