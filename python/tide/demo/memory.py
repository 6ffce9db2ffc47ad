"""The memory that the ranks of this machine take together."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

INTERVAL_S = 0.05


def _rollup(pid: int) -> tuple[int, int]:
    """Proportional set size in bytes, and of it the shared-memory pages."""
    found = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("Pss", "Pss_Shmem"):
            found[name] = int(rest.split()[0]) * 1024
    return found["Pss"], found.get("Pss_Shmem", 0)


def _memory_files(pid: int) -> dict[int, int]:
    """Allocated bytes of the anonymous memory files that a process holds open, by inode."""
    found = {}
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if os.readlink(fd).startswith("/memfd:"):
                status = fd.stat()
                found[status.st_ino] = status.st_blocks * 512
        except OSError:
            continue  # closed meanwhile
    return found


def used(pids: Sequence[int]) -> int:
    """Bytes, each shared page counted once, also those of memory files that no process has touched."""
    total = shared = 0
    files: dict[int, int] = {}
    for pid in pids:
        pss, shmem = _rollup(pid)
        total += pss
        shared += shmem
        files |= _memory_files(pid)
    return total - shared + max(shared, sum(files.values()))


class Peak:
    """with Peak(pids) as peak: ...; then peak.bytes. Samples from a thread, so what runs inside is slowed down."""

    def __init__(self, pids: Sequence[int]) -> None:
        self.bytes = 0
        self._pids = list(pids)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def _sample(self) -> None:
        while True:
            self.bytes = max(self.bytes, used(self._pids))
            if self._done.wait(INTERVAL_S):
                return

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        self._thread.join()
