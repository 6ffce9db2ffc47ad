"""How far the demo is: one bar on a terminal, a line a block when piped."""

from __future__ import annotations

import sys
import time
from typing import Any


class Progress:
    def __init__(self, steps: int) -> None:
        self._began = time.monotonic()
        self._bar = None
        if sys.stderr.isatty():
            try:
                from tqdm import tqdm
            except ImportError:
                return
            self._bar = tqdm(total=steps, unit="step", dynamic_ncols=True, file=sys.stderr)

    def say(self, text: str) -> None:
        if self._bar is not None:
            self._bar.set_description(text)
        else:
            print(f"[{time.monotonic() - self._began:4.0f} s] {text}", flush=True)

    def see(self, report: dict[str, Any]) -> None:
        match report["event"]:
            case "step" if self._bar is not None:
                what = {"memory": "memory, ", "warm": "warming up, "}.get(report["kind"], "")
                self._bar.set_description(f"{report['impl']}: {what}{report['tokens']} tokens a rank")
                self._bar.set_postfix_str(f"loss {report['loss']:.3f}")
                self._bar.update()
            case "open" if self._bar is None:
                self.say(f"{report['impl']}: model of {report['parameters'] / 1e6:.1f} M parameters is built")
            case "memory" if self._bar is None:
                taken = report["peak"] / 2**20
                self.say(f"{report['impl']}: {report['tokens']} tokens a rank: {taken:.0f} MiB at most")
            case "block" if self._bar is None:
                middle = sorted(report["seconds"])[len(report["seconds"]) // 2]
                self.say(
                    f"{report['impl']}: {report['tokens']} tokens a rank: {len(report['seconds'])} steps, "
                    f"{middle:.2f} s each, loss {report['loss'][-1]:.3f}"
                )
            case "skipped":
                left_out = "round is" if report["rounds"] == 1 else f"{report['rounds']} rounds are"
                self.say(f"time is up: the last {left_out} left out of the loss curve")

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
