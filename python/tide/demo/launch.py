"""Runs a job under torchrun and passes on what its rank 0 reports."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MARK = "\x1e"
SILENCE_S = 300  # no report for so long: a rank hangs
STOP_S = 20

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONWARNINGS": "ignore",
}


class JobError(RuntimeError):
    """One sentence: which rank failed, why, and where its output is."""


def _lines(process: subprocess.Popen[bytes]) -> Iterator[str]:
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        rest = b""
        while True:
            if not selector.select(SILENCE_S):
                raise TimeoutError
            chunk = os.read(process.stdout.fileno(), 1 << 16)
            if not chunk:
                return
            *lines, rest = (rest + chunk).split(b"\n")
            yield from (line.decode(errors="replace") for line in lines)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()  # torchrun ends its ranks
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def events(job: dict[str, Any], ranks: int, folder: Path) -> Iterator[dict[str, Any]]:
    """The reports, as they come. Throws JobError. Ends the ranks if the caller stops listening."""
    folder.mkdir(parents=True, exist_ok=True)
    path, log = folder / "job.json", folder / "job.log"
    path.write_text(json.dumps(job))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += ["-m", "tide.demo.train", str(path)]
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=os.environ | ENVIRONMENT
        )
        why = ""
        try:
            for line in _lines(process):
                if not line.startswith(MARK):
                    errors.write((line + "\n").encode())
                    errors.flush()
                    continue
                report = json.loads(line[len(MARK) :])
                if report["event"] == "failed":
                    why = why or f"rank {report['rank']} failed: {report['why']}"
                else:
                    yield report
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
        except TimeoutError:
            why = f"no rank reported anything for {SILENCE_S} s"
        finally:
            if process.poll() is None:
                _stop(process)
            process.stdout.close()
    if why or process.returncode != 0:
        raise JobError(f"{why or f'torchrun ended with status {process.returncode}'} (its output is in {log})")
