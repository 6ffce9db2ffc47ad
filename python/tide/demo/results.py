"""What a job reported, as numbers: the contents of report.json."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Row:
    """One implementation at one number of tokens a rank. Seconds are medians over steps."""

    tokens: int
    impl: str
    steps: int
    step_s: float
    step_low_s: float  # first and third quartile
    step_high_s: float
    communication_s: float  # inside FSDP2's communication, mean of the ranks
    parts_s: dict[str, float]
    compute_cpu_s: float  # of all ranks together
    communication_cpu_s: float
    cores_busy: float  # cores that the ranks had on average
    peak_bytes: int | None  # of all ranks, over what they took before the model was built
    base_bytes: int | None

    @property
    def compute_share(self) -> float:
        return 1 - self.communication_s / self.step_s

    @property
    def bound(self) -> float:
        """What a step would gain if its communication took no time."""
        return 1 / self.compute_share

    @property
    def cpu_bound(self) -> float:
        """The same by CPU time, which holds no waiting."""
        return (self.compute_cpu_s + self.communication_cpu_s) / self.compute_cpu_s


@dataclass
class Results:
    rows: list[Row] = field(default_factory=list)
    losses: dict[str, list[float]] = field(default_factory=dict)
    parameters: int = 0
    tide_table: str | None = None  # which groups TIDE serves
    tide_stats: dict[str, dict[str, float]] | None = None  # of the loss curve, on rank 0

    def row(self, impl: str, tokens: int) -> Row | None:
        return next((row for row in self.rows if (row.impl, row.tokens) == (impl, tokens)), None)

    def ratio(self, tokens: int) -> float | None:
        stock, tide = self.row("stock", tokens), self.row("tide", tokens)
        return stock.step_s / tide.step_s if stock and tide else None

    def loss_difference(self) -> float | None:
        """Largest difference between the two curves at one step."""
        if not {"stock", "tide"} <= self.losses.keys():
            return None
        return max(abs(a - b) for a, b in zip(self.losses["stock"], self.losses["tide"]))  # noqa: B905

    def as_json(self) -> dict[str, Any]:
        rows = [
            asdict(row) | {"compute_share": row.compute_share, "bound": row.bound, "cpu_bound": row.cpu_bound}
            for row in self.rows
        ]
        ratios = {str(n): self.ratio(n) for n in sorted({row.tokens for row in self.rows})}
        return {
            "results": rows,
            "stock_over_tide": ratios,
            "losses": self.losses,
            "largest_loss_difference": self.loss_difference(),
            "tide_stats": self.tide_stats,
        }


def collect(reports: Sequence[dict[str, Any]], impls: Sequence[str]) -> Results:
    results = Results()
    blocks: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    memory = {}
    for report in reports:
        match report["event"]:
            case "block":
                blocks[report["tokens"], report["impl"]].append(report)
                if report["curve"]:
                    results.losses.setdefault(report["impl"], []).extend(report["loss"])
            case "memory":
                memory[report["tokens"], report["impl"]] = report
            case "open":
                results.parameters = report["parameters"]
            case "table":
                results.tide_table = report["text"]
            case "stats":
                results.tide_stats = report["groups"]
    for (tokens, impl), found in sorted(blocks.items(), key=lambda item: (item[0][0], impls.index(item[0][1]))):
        peak = memory.get((tokens, impl))
        results.rows.append(_row(tokens, impl, found, peak))
    return results


def _row(tokens: int, impl: str, blocks: list[dict[str, Any]], memory: dict[str, Any] | None) -> Row:
    def all_of(name: str) -> list[Any]:
        return [value for block in blocks for value in block[name]]

    seconds = all_of("seconds")
    low, middle, high = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
    cpu = [a + b for a, b in zip(all_of("compute_cpu"), all_of("communication_cpu"), strict=True)]
    parts = all_of("parts")
    return Row(
        tokens=tokens,
        impl=impl,
        steps=len(seconds),
        step_s=middle,
        step_low_s=low,
        step_high_s=high,
        communication_s=statistics.median(all_of("communication")),
        parts_s={name: statistics.median(part[name] for part in parts) for name in parts[0]},
        compute_cpu_s=statistics.median(all_of("compute_cpu")),
        communication_cpu_s=statistics.median(all_of("communication_cpu")),
        cores_busy=sum(cpu) / sum(seconds),
        peak_bytes=memory["peak"] - memory["base"] if memory else None,
        base_bytes=memory["base"] if memory else None,
    )


def bit_difference(reports: Sequence[dict[str, Any]]) -> tuple[int, str | None]:
    """How many steps the two runs of a bit check took, and the first difference in words."""
    by_impl: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for report in reports:
        if report["event"] == "block":
            by_impl[report["impl"]].append(report)
    step = 0
    for one, other in zip(by_impl["reference"], by_impl["tide"], strict=True):
        for ours, theirs in zip(one["rank_loss"], other["rank_loss"], strict=True):
            for rank, (a, b) in enumerate(zip(ours, theirs, strict=True)):
                if a != b:
                    return step, f"the loss of rank {rank} at step {step} is {a} in the reference and {b} on TIDE"
            step += 1
        for rank, (a, b) in enumerate(zip(one["digests"], other["digests"], strict=True)):
            if a != b:
                return step, f"the parameters of rank {rank} differ after step {step - 1}"
    return step, None
