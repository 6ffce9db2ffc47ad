"""The low-level session: bits of gathers and reductions, misuse, failures and lifetimes."""

from __future__ import annotations

import gc
import os
import pickle
import threading
import time

import pytest

torch = pytest.importorskip("torch")
import tide  # noqa: E402
import torch.distributed as dist  # noqa: E402
from ranks import FolderStore, run_ranks  # noqa: E402

WORLDS = (1, 2, 3, 4, 5, 8)
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "i64": torch.int64, "bool": torch.bool}
GUARD = 16  # elements before and after every buffer
SHAPES = [[7], [1], [16, 3], [2, 5, 3], [0, 4], [3, 0], [5, 1], [64, 2]]


def open_session(rank: int, world: int, folder: str, groups: dict[str, tuple[list, dict]], **options):
    job = options.pop("job", "test")
    session = tide.Session(
        rank, world, dist.FileStore(f"{folder}/{job}", world), job=job, **{"deadline": 20.0, **options}
    )
    ids = {name: session.register_group(name, tensors, **extra) for name, (tensors, extra) in groups.items()}
    session.commit()
    return session, ids


def values(index: int, count: int, dtype: torch.dtype, salt: int = 0) -> torch.Tensor:
    """A function of (tensor, element) only, with exponents far apart: a wrong order or place shows in the bits."""
    generator = torch.Generator().manual_seed(100_003 * salt + index)
    whole = torch.randint(-(2**40), 2**40, (count,), generator=generator)
    if dtype == torch.bool:
        return whole % 2 == 0
    if not dtype.is_floating_point:
        return whole.to(dtype)
    spread = 10 if dtype == torch.float16 else 16
    exponents = torch.randint(-spread, spread + 1, (count,), generator=generator)
    return torch.ldexp(whole.double() / 2**40, exponents).to(dtype)


def guarded(content: torch.Tensor, fill: int) -> tuple[torch.Tensor, torch.Tensor]:
    whole = torch.full((content.numel() + 2 * GUARD,), fill, dtype=content.dtype)
    inner = whole[GUARD : GUARD + content.numel()]
    inner.copy_(content)
    return whole, inner


def shard(full: torch.Tensor, rank: int, world: int) -> torch.Tensor:
    """A rank's padded shard; padding is poison, which no landing may show."""
    rows = -(-full.size(0) // world)
    mine = full[rank * rows : (rank + 1) * rows]
    padded = torch.full((rows, *full.shape[1:]), 77, dtype=full.dtype)
    padded[: mine.size(0)] = mine
    return padded.reshape(-1)


def landing(session, group: int, param: int, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.from_dlpack(session.landing(group, param)).view(dtype).view(shape)


def fold(world: int, index: int, shape: list[int], dtype: torch.dtype, alpha: float, salt: int) -> torch.Tensor:
    count = torch.Size(shape).numel()
    total = values(index, count, dtype, salt).float()
    for rank in range(1, world):
        total = total + values(index, count, dtype, salt + rank).float()
    return (total * torch.tensor(alpha, dtype=torch.float32)).view(shape)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(a.contiguous().reshape(-1).view(torch.uint8), b.contiguous().reshape(-1).view(torch.uint8))


# --- Gathers and reductions -------------------------------------------------------------------------------------------


def gathers(rank: int, world: int, folder: str, kind: str) -> None:
    stored = {"plain": ["f32", "bf16", "i64", "bool"], "cast": ["f32", "bf16", "i64", "f16"]}
    groups = {
        f"{name}{number}": (
            [(f"t{i}", shape, dtypes[(i + number) % len(dtypes)], False) for i, shape in enumerate(SHAPES)],
            {"cast": name == "cast", "gather_dtype": "bf16"},
        )
        for name, dtypes in stored.items()
        for number in range(2)
        if not (kind == "home" and name == "cast")
    }
    session, ids = open_session(rank, world, folder, groups, landing=kind, ring_depth=2, job=kind)
    # At home the landing is where the optimizer writes, and only a reduction orders that after the others' reads.
    for turn in range(1 if kind == "home" else 3):
        for name, (tensors, extra) in groups.items():
            group = ids[name]
            fulls = [
                values(i, torch.Size(shape).numel(), DTYPES[dtype], turn).view(shape)
                for i, (_, shape, dtype, _) in enumerate(tensors)
            ]
            buffers = [guarded(shard(full, rank, world), 3) for full in fulls]
            before = [whole.clone() for whole, _ in buffers]
            if kind == "home":
                for i, (_, inner) in enumerate(buffers):
                    if inner.numel():
                        torch.from_dlpack(session.shard_memory(group, i)).view(inner.dtype)[:] = inner
                session.all_gather(group, [])
            else:
                session.all_gather(group, [inner.data_ptr() for _, inner in buffers])
            for i, full in enumerate(fulls):
                dtype = torch.bfloat16 if extra["cast"] and full.is_floating_point() else full.dtype
                got = landing(session, group, i, list(full.shape), dtype)
                assert same(got, full.to(dtype)), (kind, name, i, turn)
                assert got.storage_offset() == 0 and got.untyped_storage().nbytes() == got.numel() * got.itemsize
            for (whole, _), old in zip(buffers, before, strict=True):
                assert same(whole, old), "a shard was written to"
            session.release(group)
    if kind == "resident":  # unchanged shards stay; nobody looks at the pointers' new contents
        name, (tensors, _) = "plain0", groups["plain0"]
        poison = torch.full((4096,), 5, dtype=torch.uint8)
        moved = session.stats(ids[name])["bytes_moved"]
        session.all_gather(ids[name], [poison.data_ptr()] * len(tensors), unchanged=True)
        for i, (_, shape, dtype, _) in enumerate(tensors):
            full = values(i, torch.Size(shape).numel(), DTYPES[dtype], 2).view(shape)
            assert same(landing(session, ids[name], i, shape, DTYPES[dtype]), full)
        session.release(ids[name])
        counters = session.stats(ids[name])
        assert (counters["gathers"], counters["kept"], counters["bytes_moved"]) == (4, 1, moved)
    session.close()


def reductions(rank: int, world: int, folder: str) -> None:
    tensors = [(f"t{i}", shape, "f32", i != 4) for i, shape in enumerate(SHAPES)]
    session, ids = open_session(rank, world, folder, {"g": (tensors, {})}, chunk_bytes=256, job="reduce")
    group = ids["g"]
    layout = session.layout(group)
    every = [i != 4 for i in range(len(SHAPES))]
    some = [i in (0, 2, 6) for i in range(len(SHAPES))]
    salt = 0
    for name in ("f32", "bf16", "f16"):
        for present in (every, some, every):
            for alpha, accumulate in ((1.0, False), (1.0 / world, False), (0.3, True)):
                dtype = DTYPES[name]
                salt += 100
                buffers = [
                    guarded(values(i, torch.Size(shape).numel(), dtype, salt + rank), 9)
                    for i, shape in enumerate(SHAPES)
                ]
                before = [whole.clone() for whole, _ in buffers]
                count = layout.packed_elements(present)
                whole, out = guarded(torch.full((count,), 0.25), -4)
                session.reduce_scatter(
                    group,
                    [inner.data_ptr() if here else 0 for (_, inner), here in zip(buffers, present, strict=True)],
                    out.data_ptr(),
                    count,
                    grad_dtype=name,
                    alpha=alpha,
                    accumulate=accumulate,
                )
                offset = 0
                for i, shape in enumerate(SHAPES):
                    if not present[i]:
                        continue
                    total = fold(world, i, shape, dtype, alpha, salt)
                    rows = -(-shape[0] // world)
                    mine = total[rank * rows : (rank + 1) * rows].reshape(-1)
                    if accumulate:
                        mine = mine + 0.25
                    got = out[offset : offset + mine.numel()]
                    assert same(got, mine), (world, name, i, alpha, accumulate)
                    offset += rows * torch.Size(shape[1:]).numel()
                assert offset == count
                assert bool((whole[:GUARD] == -4).all()) and bool((whole[-GUARD:] == -4).all())
                for (kept, _), old in zip(buffers, before, strict=True):
                    assert same(kept, old), "a gradient was written to"
    assert session.stats(group)["reduces"] == 27
    session.close()


def order_shows(world: int) -> None:
    # What makes the comparisons above able to fail: another order of the ranks gives other bits.
    if world < 3:
        return
    ranks = [values(2, 48, torch.float32, r) for r in range(world)]
    forward, backward = ranks[0], ranks[-1]
    for r in range(1, world):
        forward, backward = forward + ranks[r], backward + ranks[world - 1 - r]
    assert not same(forward, backward)


def bits(rank: int, world: int, folder: str) -> None:
    order_shows(world)
    for kind in ("resident", "ring", "private", "home"):
        gathers(rank, world, folder, kind)
    reductions(rank, world, folder)


@pytest.mark.parametrize("world", WORLDS)
def test_bits(world: int) -> None:
    run_ranks(world, bits)


# --- Misuse -----------------------------------------------------------------------------------------------------------


def raises(code: str, call, *words: str) -> tide.Error:
    with pytest.raises(tide.Error) as caught:
        call()
    assert caught.value.code == code, caught.value
    for word in words:
        assert word in str(caught.value), caught.value
    return caught.value


def misuse(rank: int, world: int, folder: str) -> None:
    tensors = [("weight", [4, 2], "f32", True)]
    session, ids = open_session(
        rank, world, folder, {"a": (tensors, {}), "b": (tensors, {})}, landing="ring", ring_depth=1
    )
    a, b = ids["a"], ids["b"]
    mine, out = torch.ones(8), torch.empty(64)
    shards = [mine.data_ptr()]
    raises("invalid_argument", lambda: session.release(a), "'a'")
    raises("invalid_argument", lambda: session.all_gather(a, []), "'a'")
    raises("invalid_argument", lambda: session.all_gather(9, shards), "9")
    raises("invalid_argument", lambda: session.landing(a, 1))
    raises("invalid_argument", lambda: session.reduce_scatter(a, [mine.data_ptr()], out.data_ptr(), 64), "64")
    raises("invalid_argument", lambda: session.register_group("c", tensors), "commit")
    with pytest.raises(TypeError):
        session.all_gather(a, [mine])
    session.all_gather(a, shards)
    raises("invalid_argument", lambda: session.all_gather(b, shards), "ring_depth")
    session.release(a)
    session.all_gather(b, shards)  # nothing above ended the session
    session.release(b)
    session.close()
    session.close()
    raises("closed", lambda: session.all_gather(a, shards))

    other = [("weight", [4 + rank, 2], "f32", True)]
    raises("mismatch", lambda: open_session(rank, world, folder, {"a": (other, {})}, job="differs"), "weight")


def test_misuse() -> None:
    run_ranks(2, misuse)


def test_arguments() -> None:
    with pytest.raises(tide.Error, match="landing"):
        tide.Session(0, 1, landing="heap")
    with pytest.raises(tide.Error, match="deadline"):
        tide.Session(0, 1, deadline=0)
    with pytest.raises(tide.Error, match="store"):
        tide.Session(0, 2)
    with pytest.raises(tide.Error, match="get"):
        tide.Session(0, 2, type("Half", (), {"set": lambda *_: None})())
    session = tide.Session(0, 1)
    with pytest.raises(tide.Error, match="complex64"):
        session.register_group("g", [("w", [2], "complex64", True)])
    with pytest.raises(tide.Error, match="commit"):
        session.all_gather(session.register_group("g", [("w", [2], "f32", True)]), [0])


def test_layout() -> None:
    layout = tide.Layout("g", [("a", [5, 3], "f32", True), ("b", [2], "f32", False)], world=4, cast=True)
    assert (layout.world, layout.elements) == (4, 17)
    assert layout.landing_bytes >= 256 + 2 * 4
    assert layout.packed_grad_elements == 2 * 3
    assert layout.packed_elements([False, False]) == 0


def test_error_pickles() -> None:
    error = pickle.loads(pickle.dumps(tide.Error("timeout", "too late")))
    assert (error.code, str(error), error.recoverable) == ("timeout", "too late", True)
    assert not tide.Error("mismatch", "different").recoverable


# --- Stores, failures, lifetimes --------------------------------------------------------------------------------------


def python_store(rank: int, world: int, folder: str) -> None:
    session = tide.Session(rank, world, FolderStore(folder), deadline=20.0)
    group = session.register_group("g", [("w", [world], "f32", True)])
    session.commit()
    mine = torch.tensor([float(rank)])
    session.all_gather(group, [mine.data_ptr()])
    assert landing(session, group, 0, [world], torch.float32).tolist() == [float(r) for r in range(world)]
    session.close()


def test_python_store() -> None:
    run_ranks(3, python_store)


def absent_peer(rank: int, world: int, folder: str) -> None:
    begin = time.monotonic()
    error = raises("timeout", lambda: open_session(0, 2, folder, {}, deadline=0.5))
    assert error.recoverable and time.monotonic() - begin < 5


def test_absent_peer() -> None:
    run_ranks(1, absent_peer)


def dying_peer(rank: int, world: int, folder: str) -> float:
    session, ids = open_session(rank, world, folder, {"g": ([("w", [world], "f32", True)], {})}, deadline=60.0)
    mine = torch.ones(1)
    session.all_gather(ids["g"], [mine.data_ptr()])
    session.release(ids["g"])
    if rank == 1:
        os._exit(3)
    begin = time.monotonic()
    with pytest.raises(tide.Error) as caught:
        for _ in range(3):
            session.all_gather(ids["g"], [mine.data_ptr()])
            session.release(ids["g"])
    assert caught.value.code in ("peer_lost", "aborted") and caught.value.recoverable, caught.value
    raises("aborted", lambda: session.all_gather(ids["g"], [mine.data_ptr()]))
    return time.monotonic() - begin


def test_dying_peer() -> None:
    took = run_ranks(3, dying_peer, may_die=(1,))
    assert took[1] is None and max(took[0], took[2]) < 10


def blocked_call(rank: int, world: int, folder: str) -> int:
    session, ids = open_session(rank, world, folder, {"g": ([("w", [world], "f32", True)], {})})
    mine = torch.ones(1)
    ticks, done = 0, threading.Event()

    def count() -> None:
        nonlocal ticks
        while not done.wait(0.01):
            ticks += 1

    counter = threading.Thread(target=count)
    counter.start()
    if rank == 1:
        time.sleep(0.5)
    session.all_gather(ids["g"], [mine.data_ptr()])
    done.set()
    counter.join()
    session.release(ids["g"])
    session.close()
    return ticks


def test_blocked_calls_leave_the_interpreter_to_others() -> None:
    assert run_ranks(2, blocked_call)[0] >= 10


def lifetimes(rank: int, world: int, folder: str) -> None:
    session, ids = open_session(rank, world, folder, {"g": ([("w", [64], "f32", True)], {})})
    mine = torch.full((-(-64 // world),), 1.0 + rank)
    session.all_gather(ids["g"], [mine.data_ptr()])
    whole = landing(session, ids["g"], 0, [64], torch.float32)
    expected = whole.clone()
    session.close()
    del session
    gc.collect()
    assert same(whole, expected) and whole[0] == 1.0  # the tensor keeps the mapping

    session, ids = open_session(rank, world, folder, {"g": ([("w", [64], "f32", True)], {})}, job="fork")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            session.all_gather(ids["g"], [mine.data_ptr()])
            answer = "no error"
        except tide.Error as error:
            answer = error.code
        del session
        gc.collect()
        os.write(writer, answer.encode())
        os._exit(0)
    assert os.read(reader, 64) == b"closed"
    assert os.waitpid(child, 0)[1] == 0
    session.all_gather(ids["g"], [mine.data_ptr()])  # the child took nothing down
    session.release(ids["g"])
    session.close()


def test_lifetimes() -> None:
    run_ranks(2, lifetimes)
