"""Whether the machine did other work meanwhile, which makes every time too long."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path


def _machine() -> float:
    """CPU seconds that the machine has spent on anything, stolen time included; 0 where the kernel does not say."""
    try:
        fields = [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except (OSError, ValueError, IndexError):
        return 0.0
    idle = fields[3] + fields[4]
    return (sum(fields) - idle) / os.sysconf("SC_CLK_TCK")


def _own() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class OtherWork:
    def __init__(self) -> None:
        self._began = time.monotonic()
        self._before = _machine() - _own()

    def cores(self) -> float:
        """Cores that others used on average; counts children of this process once they have ended."""
        return max(0.0, (_machine() - _own() - self._before) / (time.monotonic() - self._began))
