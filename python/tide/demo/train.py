"""One rank of a job: trains models in the rounds that the job names, and reports from rank 0.

Started by torchrun as `python -m tide.demo.train job.json` (schedule.py says what is in a job). A report is a line of
JSON on standard output after MARK.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import json
import os
import sys
import time
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from tide.demo.clock import PARTS, Clock
from tide.demo.launch import MARK
from tide.demo.memory import Peak, used
from tide.demo.model import SIZES, Size, build
from tide.demo.reference import use_reference

LEARNING_RATE = 1e-3
SEED = 0


def report(event: str, **fields: Any) -> None:
    print(MARK + json.dumps({"event": event, **fields}, default=str), flush=True)


def report_once(event: str, **fields: Any) -> None:
    if dist.get_rank() == 0:
        report(event, **fields)


def gathered(value: Any) -> list[Any]:
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def trim() -> None:
    """Gives freed heap back to the system, where the C library can."""
    gc.collect()
    release = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if release is not None:
        release(0)


class Corpus:
    def __init__(self, path: Path) -> None:
        self._tokens = numpy.load(path, mmap_mode="r")

    def batch(self, step: int, tokens: int, sequence: int) -> torch.Tensor:
        """This rank's part of a step: its own stretch of the text, in sequences of equal length."""
        begin = (step * dist.get_world_size() + dist.get_rank()) * tokens % (len(self._tokens) - tokens)
        stretch = torch.from_numpy(self._tokens[begin : begin + tokens].astype(numpy.int64))
        return stretch.view(-1, min(tokens, sequence))


class Trainee:
    """A model and its optimizer, trained with one implementation of FSDP2's collectives."""

    def __init__(self, impl: str, size: Size, mesh: DeviceMesh) -> None:
        self.impl = impl
        self.steps = 0
        self.model = build(size, mesh, SEED)
        if impl == "reference":
            use_reference(self.model)
        elif impl == "tide":
            import tide.fsdp

            report_once("table", text=str(tide.fsdp.enable(self.model)))
        elif impl != "stock":
            raise ValueError(f"there is no implementation {impl}: name stock, tide or reference")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE, fused=True)

    def step(self, batch: torch.Tensor) -> float:
        loss = self.model(input_ids=batch, labels=batch).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1
        return loss.item()

    def digest(self) -> str:
        """Of every bit of this rank's shards."""
        found = hashlib.sha256()
        for parameter in self.model.parameters():
            shard = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            found.update(shard.detach().contiguous().view(torch.uint8).numpy().tobytes())
        return found.hexdigest()

    def close(self) -> None:
        if self.impl == "tide":
            import tide.fsdp

            report_once("stats", groups=tide.fsdp.stats(self.model))
            tide.fsdp.disable(self.model)


class Job:
    def __init__(self, job: dict[str, Any]) -> None:
        self._mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        self._size = SIZES[job["size"]]
        self._corpus = Corpus(Path(job["corpus"]))
        self._deadline = job["deadline"]
        self._pids = gathered(os.getpid())
        self._trainees: dict[str, Trainee] = {}
        self._base: dict[str, int] = {}  # bytes that all ranks took before a trainee was built
        self._clock = Clock()
        self._actions = {
            "warm": self._warm,
            "open": self._open,
            "close": self._close,
            "memory": self._memory,
            "time": self._time,
        }

    def run(self, rounds: list[dict[str, Any]]) -> None:
        for number, part in enumerate(rounds):
            if part["optional"] and self._late():
                report_once("skipped", rounds=len(rounds) - number)
                break
            for block in part["blocks"]:
                self._actions[block["kind"]](block)
        for trainee in self._trainees.values():
            trainee.close()

    def _late(self) -> bool:
        late = torch.tensor(time.time() > self._deadline)
        dist.broadcast(late, 0)
        return bool(late)

    def _warm(self, block: dict[str, Any]) -> None:
        """Takes what only the first model of a process takes (code, the allocator's reserves), so that it counts as
        memory of none of those that are compared.
        """
        trainee = Trainee("stock", self._size, self._mesh)
        for step in range(block["steps"]):
            loss = trainee.step(self._corpus.batch(step, block["tokens"], self._size.sequence))
            report_once("step", **block, loss=loss)

    def _open(self, block: dict[str, Any]) -> None:
        trim()
        dist.barrier()
        self._base[block["impl"]] = used(self._pids) if dist.get_rank() == 0 else 0
        dist.barrier()
        trainee = Trainee(block["impl"], self._size, self._mesh)
        self._trainees[block["impl"]] = trainee
        self._clock.install()
        report_once("open", **block, parameters=sum(p.numel() for p in trainee.model.parameters()))

    def _close(self, block: dict[str, Any]) -> None:
        self._trainees.pop(block["impl"]).close()

    def _memory(self, block: dict[str, Any]) -> None:
        trainee = self._trainees[block["impl"]]
        trim()
        dist.barrier()
        with Peak(self._pids) if dist.get_rank() == 0 else nullcontext() as peak:
            for _ in range(block["steps"]):
                loss = trainee.step(self._corpus.batch(trainee.steps, block["tokens"], self._size.sequence))
                report_once("step", **block, loss=loss)
            dist.barrier()
        if peak:
            report("memory", **block, peak=peak.bytes, base=self._base[block["impl"]])

    def _time(self, block: dict[str, Any]) -> None:
        trainee, steps = self._trainees[block["impl"]], block["steps"]
        taken = []
        for done in range(-block["warmup"], steps):
            batch = self._corpus.batch(trainee.steps, block["tokens"], self._size.sequence)
            dist.barrier()
            self._clock.read()
            loss = trainee.step(batch)
            passed = self._clock.read() | {"loss": loss}
            dist.barrier()
            passed["seconds"] += self._clock.read()["seconds"]
            if done >= 0:
                taken.append(passed)
            report_once("step", **block, loss=loss, seconds=passed["seconds"])
        ranks = gathered(taken)
        digests = gathered(trainee.digest()) if block["digest"] else None
        by_step = list(zip(*ranks, strict=True))
        report_once(
            "block",
            **block,
            seconds=[step[0]["seconds"] for step in by_step],
            communication=[mean([rank["communication"] for rank in step]) for step in by_step],
            parts=[{part: mean([rank["parts"][part] for rank in step]) for part in PARTS} for step in by_step],
            compute_cpu=[sum(rank["compute_cpu"] for rank in step) for step in by_step],
            communication_cpu=[sum(rank["communication_cpu"] for rank in step) for step in by_step],
            loss=[mean([rank["loss"] for rank in step]) for step in by_step],
            rank_loss=[[rank["loss"].hex() for rank in step] for step in by_step],
            digests=digests,
        )


def main() -> int:
    job = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", timeout=timedelta(seconds=job["timeout_s"]))
        Job(job).run(job["rounds"])
        dist.barrier()
        dist.destroy_process_group()
    except Exception as error:
        report("failed", rank=int(os.environ.get("RANK", 0)), why=f"{type(error).__name__}: {error}".split("\n")[0])
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
