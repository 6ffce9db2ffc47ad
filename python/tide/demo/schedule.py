"""What a job does: rounds of blocks. A block runs some steps of one implementation, a round one block of each.

The implementations take turns within one job, so that a machine which slows down slows both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

BLOCK_STEPS = 10


def _round(blocks: list[dict[str, Any]], optional: bool = False) -> dict[str, Any]:
    return {"optional": optional, "blocks": blocks}


def _time(impls: Sequence[str], tokens: int, steps: int, optional: bool = False, **fields: Any) -> dict[str, Any]:
    common = {"kind": "time", "tokens": tokens, "steps": steps, "warmup": 0, "curve": False, "digest": False} | fields
    return _round([common | {"impl": impl} for impl in impls], optional)


def _opened(impls: Sequence[str]) -> dict[str, Any]:
    return _round([{"kind": "open", "impl": impl} for impl in impls])


def _curve(impls: Sequence[str], tokens: int, steps: int, **fields: Any) -> list[dict[str, Any]]:
    lengths = [BLOCK_STEPS] * (steps // BLOCK_STEPS) + [steps % BLOCK_STEPS] * (steps % BLOCK_STEPS > 0)
    return [_time(impls, tokens, length, curve=True, **fields) for length in lengths]


def compare(impls: Sequence[str], tokens: Sequence[int], steps: int) -> list[dict[str, Any]]:
    """Memory of each implementation alone, then steps of each size in turns, then the loss curve, whose later rounds
    are left out when time is up.
    """
    rounds = [_round([{"kind": "warm", "impl": "stock", "tokens": tokens[-1], "steps": 1}])]
    for impl in impls:
        memory = [{"kind": "memory", "impl": impl, "tokens": n, "steps": 2 if n == tokens[0] else 1} for n in tokens]
        rounds.append(_round([{"kind": "open", "impl": impl}, *memory, {"kind": "close", "impl": impl}]))
    rounds.append(_opened(impls))
    # The models of these rounds are not those of the curve: that one starts from the first step.
    for n in tokens[1:]:
        timed = 4 if n <= 256 else 2
        rounds += [_time(impls, n, timed, warmup=1 if again == 0 else 0) for again in range(2)]
    rounds.append(_round([{"kind": "close", "impl": impl} for impl in impls]))
    rounds.append(_opened(impls))
    curve = _curve(impls, tokens[0], steps)
    for part in curve[2:]:
        part["optional"] = True
    return rounds + curve


def check_bits(steps: int) -> list[dict[str, Any]]:
    impls = ("reference", "tide")
    return [_opened(impls), *_curve(impls, 64, steps, digest=True)]


def steps_of(rounds: Sequence[dict[str, Any]]) -> int:
    return sum(block.get("steps", 0) + block.get("warmup", 0) for part in rounds for block in part["blocks"])
