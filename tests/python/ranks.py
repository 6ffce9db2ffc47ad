"""Ranks for tests: one function in several processes, and what each returned or raised."""

from __future__ import annotations

import contextlib
import multiprocessing
import pathlib
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

_context = multiprocessing.get_context("forkserver")
# Importing PyTorch takes seconds of a core: once, not once a rank.
_context.set_forkserver_preload(["torch", "torch.distributed.fsdp", "torch.distributed.checkpoint.state_dict"])


class FolderStore:
    """The least that a session's store needs: set, and a get that waits."""

    def __init__(self, folder: str, deadline: float = 30.0) -> None:
        self.folder = pathlib.Path(folder)
        self.deadline = deadline

    def _path(self, key: str) -> pathlib.Path:
        return self.folder / key.encode().hex()

    def set(self, key: str, value: bytes) -> None:
        temporary = pathlib.Path(tempfile.mkstemp(dir=self.folder, prefix="new")[1])
        temporary.write_bytes(value)
        temporary.rename(self._path(key))

    def get(self, key: str) -> bytes:
        end = time.monotonic() + self.deadline
        while not self._path(key).exists():
            if time.monotonic() > end:
                raise TimeoutError(f"no key {key}")
            time.sleep(0.001)
        return self._path(key).read_bytes()


def _rank(report: Connection, function: Callable[..., Any], rank: int, world: int, folder: str, args: tuple) -> None:
    import torch

    torch.set_num_threads(1)
    try:
        report.send((True, function(rank, world, folder, *args)))
    except BaseException as error:
        report.send((False, "".join(traceback.format_exception(error))))


def run_ranks(
    world: int, function: Callable[..., Any], *args: Any, seconds: float = 120.0, may_die: tuple[int, ...] = ()
) -> list[Any]:
    """What function(rank, world, folder, *args) returned on every rank; `folder` is theirs alone.

    Fails with the text of every rank that raised, died (except those in may_die, whose result is None) or ran late.
    """
    folder = tempfile.mkdtemp(prefix="tide-test-")
    ranks, ends = [], []
    try:
        for rank in range(world):
            mine, theirs = _context.Pipe(duplex=False)
            process = _context.Process(target=_rank, args=(theirs, function, rank, world, folder, args), daemon=True)
            process.start()
            theirs.close()
            ranks.append(process)
            ends.append(mine)
        results: list[Any] = [None] * world
        problems: list[str] = []
        pending = {end: rank for rank, end in enumerate(ends)}
        deadline = time.monotonic() + seconds
        while pending and time.monotonic() < deadline:
            for end in wait(list(pending), timeout=max(0.0, deadline - time.monotonic())):
                rank = pending.pop(end)
                try:
                    good, value = end.recv()
                except EOFError:
                    if rank not in may_die:
                        problems.append(f"rank {rank} died")
                    continue
                if good:
                    results[rank] = value
                else:
                    problems.append(f"rank {rank}:\n{value}")
            if problems:  # the others are given a moment to say what they saw
                deadline = min(deadline, time.monotonic() + 5)
        problems += [f"rank {rank} had not finished after {seconds} s" for rank in pending.values() if not problems]
        assert not problems, "\n".join(problems)
        return results
    finally:
        for process in ranks:
            process.join(timeout=5 if not problems else 0.1)
            if process.is_alive():
                process.kill()
                process.join()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def process_group(rank: int, world: int, folder: str) -> Iterator[None]:
    """torch.distributed over gloo on this machine."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", world), rank=rank, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()
