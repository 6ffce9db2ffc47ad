"""enable, disable, explain, stats."""

from __future__ import annotations

import datetime
import hashlib
import os
import warnings
from collections import Counter
from dataclasses import dataclass, field

import torch.distributed as dist
import torch.nn as nn
from torch.distributed.distributed_c10d import PrefixStore, _get_process_group_store

from tide._error import Error
from tide._tide import Session
from tide.fsdp import seams
from tide.fsdp.eligibility import Verdict, judge
from tide.fsdp.gather import Gather
from tide.fsdp.groups import Unit, collect, fsdp_states
from tide.fsdp.reduce import Reduce
from tide.fsdp.table import Row, Table

LANDINGS = ("resident", "ring", "private")
ATTRIBUTE = "_tide_enabled"  # on every FSDPState of an enabled model

# How many sessions a process group has had: their keys in its store differ.
_sessions_made: Counter[str] = Counter()


@dataclass
class Enabled:
    """What enable() set up for a model."""

    units: list[Unit]
    verdicts: list[Verdict]
    landings: list[str]
    sessions: list[Session] = field(default_factory=list)
    places: dict[int, tuple[Session, int]] = field(default_factory=dict)  # unit -> (session, its group there)
    gathers: list[Gather] = field(default_factory=list)
    reduces: list[Reduce] = field(default_factory=list)
    memory_bytes: int = 0

    def table(self) -> Table:
        rows = (_row(u, v, landing) for u, v, landing in zip(self.units, self.verdicts, self.landings, strict=True))
        return Table(tuple(rows), self.memory_bytes)


def enable(
    model: nn.Module,
    *,
    landing: str = "resident",
    all_gather: bool = True,
    reduce_scatter: bool = True,
    deadline: float | datetime.timedelta = datetime.timedelta(minutes=30),
    chunk_bytes: int | None = None,
    ring_depth: int = 3,
) -> Table:
    """Lets TIDE run the collectives of every eligible parameter group of `model`. Collective over the model's mesh.

    Call it on the root module after fully_shard() and the model's FSDP2 settings, between steps; the optimizer may
    exist already or come later.

    landing: where gathered parameters stand. "resident": one copy of the model a machine, shared by its ranks, so the
    backward moves nothing. "ring": `ring_depth` slots a machine, taken in turn; groups that stay gathered meanwhile,
    as the root does, keep landings of their own. "private": slots in every rank, for code that writes to gathered
    parameters.
    all_gather, reduce_scatter: False leaves that half on stock FSDP2.
    deadline: of every wait for another rank; an error follows it on every rank. A peer that dies is noticed at once.
    chunk_bytes: of a contribution in the reduce-scatter's staging.

    Returns the table that explain() gives. Throws tide.Error.
    """
    if landing not in LANDINGS:
        raise Error("invalid_argument", f'landing is "{landing}": choose one of {", ".join(LANDINGS)}')
    if ring_depth < 1:
        raise Error("invalid_argument", f"ring_depth is {ring_depth}: give at least 1")
    states = fsdp_states(model)
    if not states:
        raise Error("invalid_argument", f"{type(model).__name__} has no FSDP2 module: apply fully_shard() first")
    if any(hasattr(state, ATTRIBUTE) for state in states):
        raise Error(
            "invalid_argument",
            "tide.fsdp is already enabled for this model or a part of it: call tide.fsdp.disable(model) first",
        )
    seams.install()
    units = list(collect(model))
    for unit in units:
        if unit.group._all_gather_result is not None or unit.group._training_state.name != "IDLE":
            raise Error(
                "invalid_argument",
                f'group "{unit.name}" is in the middle of a forward or backward: call tide.fsdp.enable() between steps',
            )
    verdicts = [judge(unit, all_gather=all_gather, reduce_scatter=reduce_scatter) for unit in units]
    verdicts = _agree(units, verdicts)
    seconds = deadline.total_seconds() if isinstance(deadline, datetime.timedelta) else float(deadline)
    enabled = Enabled(units, verdicts, [landing] * len(units))
    for key, members in _sessions(units, verdicts, landing, ring_depth).items():
        depth = {"ring": ring_depth, "private": ring_depth, "private held": len(members), "reduce": 1}.get(key[1], 1)
        _open(enabled, key, members, min(depth, len(members)), seconds, chunk_bytes)
    enabled.memory_bytes = sum(session.memory_bytes for session in enabled.sessions)
    _install(enabled)
    for state in states:
        setattr(state, ATTRIBUTE, enabled)
    return enabled.table()


def disable(model: nn.Module) -> None:
    """Gives every group of `model` back to stock FSDP2 and closes the sessions. Collective, between steps.

    Does nothing if the model is not enabled. After a failed collective it still restores stock FSDP2 on this rank.
    """
    enabled = _enabled(model)
    if enabled is None:
        return
    problems: list[Error] = []
    for half in (*enabled.gathers, *enabled.reduces):
        try:
            half.uninstall()
        except Error as error:
            problems.append(error)
    for session in enabled.sessions:
        try:
            session.close()
        except Error as error:
            problems.append(error)
    for unit in enabled.units:
        if hasattr(unit.state, ATTRIBUTE):
            delattr(unit.state, ATTRIBUTE)
    if problems:
        warnings.warn(f"tide.fsdp.disable: a session did not end in order: {problems[0]}", stacklevel=2)


def explain(model: nn.Module) -> Table:
    """Which groups run on TIDE, which on stock FSDP2, and why. Before enable(): what enable(model) would choose."""
    enabled = _enabled(model)
    if enabled is not None:
        return enabled.table()
    units = list(collect(model))
    return Table(tuple(_row(unit, judge(unit), "resident") for unit in units))


def stats(model: nn.Module) -> dict[str, dict[str, float]]:
    """Counters of every group on TIDE since enable(): gathers, kept (of those, the ones that moved nothing here),
    reduces, bytes_moved and wait_seconds of this rank."""
    enabled = _enabled(model)
    if enabled is None:
        raise Error("invalid_argument", "tide.fsdp is not enabled for this model: call tide.fsdp.enable(model) first")
    return {enabled.units[index].name: session.stats(group_id) for index, (session, group_id) in enabled.places.items()}


def _enabled(model: nn.Module) -> Enabled | None:
    for state in fsdp_states(model):
        if (enabled := getattr(state, ATTRIBUTE, None)) is not None:
            return enabled
    return None


def _row(unit: Unit, verdict: Verdict, landing: str) -> Row:
    gathers = verdict.all_gather is None
    reduces = "none" if not verdict.trains else "stock" if verdict.reduce_scatter else "tide"
    size = unit.layout().landing_bytes if gathers else 0
    return Row(
        unit.name,
        len(unit.params),
        "tide" if gathers else "stock",
        reduces,
        landing if gathers else "-",
        size,
        verdict.why,
    )


# --- Agreement -------------------------------------------------------------------------------------------------------


def _machine() -> str:
    """The same for processes that can share memory and watch each other: one kernel, one PID namespace."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError as error:
        raise Error("unsupported", f"this machine cannot be told from others: {error}; mount /proc") from None


def _fingerprint(units: list[Unit], verdicts: list[Verdict]) -> list[str]:
    return [
        f"{u.name}: {'tide' if v.all_gather is None else 'stock'} all-gather, "
        f"{'tide' if v.reduce_scatter is None else 'stock'} reduce-scatter"
        for u, v in zip(units, verdicts, strict=True)
    ]


def _agree(units: list[Unit], verdicts: list[Verdict]) -> list[Verdict]:
    """Compares the decisions of the ranks of every shard group, and turns down groups that span machines."""
    machine = _machine()
    verdicts = list(verdicts)
    for group, members in _by_process_group(units).items():
        decisions = _fingerprint([units[i] for i in members], [verdicts[i] for i in members])
        gathered: list[tuple[str, list[str]]] = [("", [])] * group.size()
        dist.all_gather_object(gathered, (machine, decisions), group=group)
        for rank, (_, theirs) in enumerate(gathered):
            if theirs != gathered[0][1]:
                first = next((pair for pair in zip(gathered[0][1], theirs, strict=False) if pair[0] != pair[1]), None)
                detail = (
                    f'"{first[0]}" and "{first[1]}"' if first else f"{len(gathered[0][1])} and {len(theirs)} groups"
                )
                raise Error(
                    "mismatch",
                    f"ranks 0 and {rank} of a shard group differ: {detail}: pass the same model and options everywhere",
                )
        if len({place for place, _ in gathered}) > 1:
            reason = "the ranks of the shard group are on several machines (or PID namespaces)"
            for i in members:
                verdicts[i] = Verdict(
                    verdicts[i].all_gather or reason, verdicts[i].reduce_scatter or reason, verdicts[i].trains
                )
    return verdicts


def _by_process_group(units: list[Unit]) -> dict[dist.ProcessGroup, list[int]]:
    """Shard groups of more than one rank whose tensors are on the CPU, in model order."""
    groups: dict[dist.ProcessGroup, list[int]] = {}
    for index, unit in enumerate(units):
        if unit.world > 1 and unit.group.device.type == "cpu" and unit.process_group is not None:
            groups.setdefault(unit.process_group, []).append(index)
    return groups


# --- Sessions --------------------------------------------------------------------------------------------------------


def _sessions(
    units: list[Unit], verdicts: list[Verdict], landing: str, ring_depth: int
) -> dict[tuple[dist.ProcessGroup, str], list[int]]:
    """The groups of every session: one a shard group and kind of landing.

    A group that is gathered while more others come and go than a ring has slots would keep its slot from them, so it
    gets a landing of its own; a group that TIDE only reduces needs none.
    """
    sessions: dict[tuple[dist.ProcessGroup, str], list[int]] = {}
    for index, (unit, verdict) in enumerate(zip(units, verdicts, strict=True)):
        if not verdict.uses_tide or unit.process_group is None:
            continue
        if verdict.all_gather is not None:
            kind = "reduce"
        elif landing == "resident" or not (unit.stays or unit.inner >= ring_depth):
            kind = landing
        else:
            kind = "resident" if landing == "ring" else "private held"
        sessions.setdefault((unit.process_group, kind), []).append(index)
    return sessions


def _open(
    enabled: Enabled,
    key: tuple[dist.ProcessGroup, str],
    members: list[int],
    ring_depth: int,
    deadline: float,
    chunk_bytes: int | None,
) -> None:
    group, kind = key
    landing = {"reduce": "ring", "private held": "private"}.get(kind, kind)
    identity = hashlib.sha256(repr(dist.get_process_group_ranks(group)).encode()).hexdigest()[:16]
    number = _sessions_made[identity]
    _sessions_made[identity] += 1
    job = f"tide/{identity}/{number}"
    options: dict[str, int] = {} if chunk_bytes is None else {"chunk_bytes": chunk_bytes}
    session = Session(
        group.rank(),
        group.size(),
        PrefixStore(job, _get_process_group_store(group)),
        job=job.replace("/", "-"),
        landing=landing,
        ring_depth=ring_depth,
        deadline=deadline,
        **options,
    )
    for index in members:
        unit = enabled.units[index]
        group_id = session.register_group(unit.name, unit.specs(), **unit.cast_options())
        enabled.places[index] = (session, group_id)
        enabled.landings[index] = landing
    session.commit()
    enabled.sessions.append(session)


def _install(enabled: Enabled) -> None:
    arity = seams.reduce_arity()
    for index, (session, group_id) in enabled.places.items():
        unit, verdict = enabled.units[index], enabled.verdicts[index]
        gather = None
        if verdict.all_gather is None:
            gather = Gather(session, group_id, unit, enabled.landings[index])
            gather.install()
            enabled.gathers.append(gather)
        if verdict.reduce_scatter is None:
            reduce = Reduce(session, group_id, unit, gather, arity)
            reduce.install()
            enabled.reduces.append(reduce)
