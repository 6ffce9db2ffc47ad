"""What part of a step is communication, measured where FSDP2 calls it."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch.distributed.fsdp._fully_shard._fsdp_param_group as param_group

# Each entry point is timed whole: what FSDP2 does there around a collective is part of what a collective costs.
ENTRIES = (
    (param_group.FSDPParamGroup, "unshard", "all-gather"),
    (param_group.FSDPParamGroup, "wait_for_unshard", "copy-out"),
    (param_group.FSDPParamGroup, "reshard", "reshard"),
    (param_group, "foreach_reduce", "reduce"),
)
PARTS = tuple(part for _, _, part in ENTRIES)


class Clock:
    """Seconds that one rank spends inside FSDP2's communication between two reads.

    Also splits the CPU time of the process: compute is what the training thread uses outside of communication, the rest
    is communication. The ranks may outnumber the cores, and then the seconds in a collective include waiting for ranks
    that still compute; CPU time does not.
    """

    def __init__(self) -> None:
        self._parts = dict.fromkeys(PARTS, 0.0)
        self._own: set[Callable[..., Any]] = set()
        self._inside = False
        self._start()

    def install(self) -> None:
        """Times the entry points from outside of whatever replaces them: called again after each replacement."""
        for owner, name, part in ENTRIES:
            found = getattr(owner, name)
            if found not in self._own:
                timed = self._timed(found, part)
                self._own.add(timed)
                setattr(owner, name, timed)

    def _start(self) -> None:
        self._parts = dict.fromkeys(PARTS, 0.0)
        self._inside_cpu = 0.0
        self._wall = time.perf_counter()
        self._thread_cpu = time.thread_time()
        self._process_cpu = time.process_time()

    def _timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return function(*args, **kwargs)
            self._inside = True
            wall, cpu = time.perf_counter(), time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self._parts[part] += time.perf_counter() - wall
                self._inside_cpu += time.thread_time() - cpu
                self._inside = False

        return timed

    def read(self) -> dict[str, Any]:
        """What passed since the last read."""
        compute_cpu = time.thread_time() - self._thread_cpu - self._inside_cpu
        passed = {
            "seconds": time.perf_counter() - self._wall,
            "communication": sum(self._parts.values()),
            "parts": self._parts,
            "compute_cpu": compute_cpu,
            "communication_cpu": time.process_time() - self._process_cpu - compute_cpu,
        }
        self._start()
        return passed
