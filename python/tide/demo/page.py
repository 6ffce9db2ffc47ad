"""report.html: the same numbers as pictures, in one file."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

from tide.demo.results import Results
from tide.demo.table import table


def write(results: Results, title: str, notes: Sequence[str], path: Path) -> bool:
    """False if Plotly is not installed."""
    try:
        from plotly.subplots import make_subplots
    except ImportError:
        return False
    figure = make_subplots(rows=1, cols=2, subplot_titles=("Seconds a step", "Loss"))
    labels = [f"{row.impl}, {row.tokens:,}" for row in results.rows]
    compute = [row.step_s - row.communication_s for row in results.rows]
    figure.add_bar(name="compute", x=labels, y=compute, row=1, col=1)
    figure.add_bar(name="communication", x=labels, y=[row.communication_s for row in results.rows], row=1, col=1)
    for impl, losses in results.losses.items():
        figure.add_scatter(name=f"loss, {impl}", y=losses, mode="lines", row=1, col=2)
    figure.update_layout(barmode="stack", template="plotly_white")
    text = "\n".join([table(results), "", *notes])
    path.write_text(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title></head>'
        f"<body><h1>{html.escape(title)}</h1>{figure.to_html(full_html=False, include_plotlyjs=True)}"
        f'<pre style="white-space: pre-wrap">{html.escape(text)}</pre></body></html>'
    )
    return True
