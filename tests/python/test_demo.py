"""The parts of the demo that its conclusions rest on."""

from __future__ import annotations

import copy
import os

import pytest

torch = pytest.importorskip("torch")

from ranks import process_group, run_ranks  # noqa: E402
from tide.demo import memory, results, schedule  # noqa: E402
from tide.demo.table import table  # noqa: E402


def contribution(rank: int, elements: int) -> torch.Tensor:
    """Values whose sum depends on the order: exponents spread over 2^-16..2^16."""
    seeded = torch.Generator().manual_seed(rank)
    exponents = torch.randint(-16, 17, (elements,), generator=seeded)
    return torch.ldexp(torch.randn(elements, generator=seeded), exponents)


def folded(order: list[int], elements: int) -> torch.Tensor:
    total = contribution(order[0], elements).clone()
    for rank in order[1:]:
        total += contribution(rank, elements)
    return total


def reduce_in_rank_order(rank: int, world: int, folder: str) -> None:
    import torch.distributed as dist
    from tide.demo.reference import ReferenceReduceScatter

    shard = 257
    elements = shard * world
    assert not torch.equal(folded(list(range(world)), elements), folded(list(reversed(range(world))), elements))
    own = slice(rank * shard, (rank + 1) * shard)
    with process_group(rank, world, folder):
        reduce = ReferenceReduceScatter()
        for op, factor in ((dist.ReduceOp.SUM, None), (dist.ReduceOp.AVG, torch.tensor(1 / world))):
            given = contribution(rank, elements)
            output = reduce.allocate((shard,), dtype=torch.float32, device=torch.device("cpu"))
            reduce(output_tensor=output, input_tensor=given, group=dist.group.WORLD, op=op)
            expected = folded(list(range(world)), elements)[own]
            assert torch.equal(output, expected if factor is None else expected * factor)
            assert torch.equal(given, contribution(rank, elements))
        with pytest.raises(ValueError, match="sums or averages"):
            reduce(output_tensor=output, input_tensor=given, group=dist.group.WORLD, op=dist.ReduceOp.MAX)


@pytest.mark.parametrize("world", [3, 5])
def test_reference_adds_in_rank_order(world: int) -> None:
    run_ranks(world, reduce_in_rank_order)


def test_memory_counts_files_that_nobody_touched() -> None:
    size = 64 << 20
    before = memory.used([os.getpid()])
    fd = os.memfd_create("untouched")
    try:
        os.posix_fallocate(fd, 0, size)
        assert memory.used([os.getpid()]) - before > size // 2
        with memory.Peak([os.getpid()]) as peak:
            pass
        assert peak.bytes > size
    finally:
        os.close(fd)


def block(impl: str, tokens: int, seconds: list[float], communication: float) -> dict:
    steps = len(seconds)
    return {
        "event": "block",
        "impl": impl,
        "tokens": tokens,
        "curve": tokens == 64,
        "seconds": seconds,
        "communication": [communication] * steps,
        "parts": [{"all-gather": communication}] * steps,
        "compute_cpu": [1.0] * steps,
        "communication_cpu": [3.0] * steps,
        "loss": [9.0 - step for step in range(steps)],
        "rank_loss": [[float(step).hex(), float(step + 1).hex()] for step in range(steps)],
        "digests": ["a", "b"],
    }


def test_ratio_and_bound() -> None:
    found = results.collect(
        [block("stock", 64, [3.0, 4.0], 3.0), block("tide", 64, [1.0, 1.0], 0.5), block("stock", 64, [5.0], 3.0)],
        ["stock", "tide"],
    )
    assert [(row.impl, row.steps) for row in found.rows] == [("stock", 3), ("tide", 2)]
    assert found.ratio(64) == 4.0
    assert found.rows[0].bound == pytest.approx(4.0)
    assert found.rows[0].cpu_bound == 4.0
    assert found.losses["stock"] == [9.0, 8.0, 9.0]
    assert "4.00x" in table(found)
    assert found.as_json()["stock_over_tide"] == {"64": 4.0}


def test_bit_check_names_the_first_difference() -> None:
    same = [block("reference", 64, [1.0] * 4, 0.5), block("tide", 64, [1.0] * 4, 0.5)]
    assert results.bit_difference(same) == (4, None)
    other = copy.deepcopy(same)
    other[1]["rank_loss"][2][1] = float.fromhex("0x1.8000000000001p+1").hex()
    steps, words = results.bit_difference(other)
    assert steps == 2
    assert "rank 1 at step 2" in words
    other = copy.deepcopy(same)
    other[1]["digests"] = ["a", "c"]
    assert "parameters of rank 1 differ after step 3" in results.bit_difference(other)[1]


def test_schedule_trains_every_run_alike() -> None:
    rounds = schedule.compare(("stock", "tide"), (64, 256, 1024), 25)
    curve = [block for part in rounds for block in part["blocks"] if block.get("curve")]
    for impl in ("stock", "tide"):
        assert sum(block["steps"] for block in curve if block["impl"] == impl) == 25
    assert all(block["warmup"] == 0 and block["tokens"] == 64 for block in curve)
    assert schedule.steps_of(schedule.check_bits(200)) == 400
