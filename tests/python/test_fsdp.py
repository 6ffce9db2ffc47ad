"""tide.fsdp against stock FSDP2: see fsdp_checks.py for what is checked."""

from __future__ import annotations

import functools
import importlib

import pytest

torch = pytest.importorskip("torch")

import fsdp_checks  # noqa: E402
import tide  # noqa: E402
from ranks import run_ranks  # noqa: E402

WORLDS = (2, 3, 4, 8)
PLAIN = [name for name in fsdp_checks.CHECKS if name not in fsdp_checks.ALONE]


def checks_of(world: int) -> list[str]:
    match world:
        case 4:
            return PLAIN
        case 2:
            return [*fsdp_checks.EVERYWHERE, *fsdp_checks.ALONE]
        case _:
            return list(fsdp_checks.EVERYWHERE)


@functools.cache
def job(world: int, *names: str) -> list[dict[str, str]]:
    return run_ranks(world, fsdp_checks.run_checks, list(names), seconds=420)


@pytest.mark.parametrize(("world", "name"), [(world, name) for world in WORLDS for name in checks_of(world)])
def test_fsdp(world: int, name: str) -> None:
    names = [name] if name in fsdp_checks.ALONE else [n for n in checks_of(world) if n not in fsdp_checks.ALONE]
    results = job(world, *names)
    problems = [f"rank {rank}:\n{result[name]}" for rank, result in enumerate(results) if result.get(name)]
    assert not problems, "\n".join(problems)
    if not all(name in result for result in results):
        pytest.fail("not run: an earlier check of this job failed")


def test_one_rank() -> None:
    assert run_ranks(1, one_rank) == [None]


def one_rank(rank: int, world: int, folder: str) -> None:
    import tide.fsdp
    from ranks import process_group

    with process_group(rank, world, folder):
        model = fsdp_checks.make()
        table = tide.fsdp.enable(model)
        assert {(row.all_gather, row.reduce_scatter) for row in table} == {("stock", "stock")}
        assert "one rank" in table["(root)"].why
        fsdp_checks.loss_of(model, 0, 0).backward()
        assert tide.fsdp.stats(model) == {}
        tide.fsdp.disable(model)


def test_other_pytorch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    seams = importlib.import_module("tide.fsdp.seams")

    def foreach_all_gather(fsdp_params, group, something_new):
        raise AssertionError

    monkeypatch.setattr(seams.param_group, "foreach_all_gather", foreach_all_gather)
    with pytest.raises(tide.Error, match="something_new") as caught:
        seams.install()
    assert caught.value.code == "unsupported" and "2.11 to 2.13" in str(caught.value)
    monkeypatch.delattr(seams.param_group, "foreach_all_gather")
    with pytest.raises(tide.Error, match="foreach_all_gather"):
        seams.install()


def test_dispatchers_are_put_in_once() -> None:
    seams = importlib.import_module("tide.fsdp.seams")
    seams.install()
    first = {name: getattr(seams.param_group, name) for name in seams.SIGNATURES}
    seams.install()
    assert {name: getattr(seams.param_group, name) for name in seams.SIGNATURES} == first
    assert all(hasattr(function, seams.MARK) for function in first.values())


def test_table_prints() -> None:
    table = importlib.import_module("tide.fsdp.table")
    text = str(table.Table((table.Row("blocks.0", 3, "tide", "stock", "ring", 5 << 20, "because"),), 1 << 30))
    assert "blocks.0" in text and "5.0 MiB" in text and "because" in text and "1.0 GiB" in text
