"""FSDP2's parameter groups as TIDE sees them: names, layouts and how long each stays gathered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

from tide._tide import Layout

DTYPES: dict[torch.dtype, str] = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.float8_e4m3fn: "f8_e4m3",
    torch.float8_e5m2: "f8_e5m2",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "bool",
}
REDUCIBLE = (torch.float32, torch.bfloat16, torch.float16)  # gradients the fold takes, and what a gather may cast

TensorSpec = tuple[str, list[int], str, bool]


@dataclass(frozen=True)
class Unit:
    """One parameter group of the model, with the names that it has in the model."""

    name: str
    state: FSDPState
    group: FSDPParamGroup
    tensors: tuple[str, ...]
    stays: bool  # gathered from its forward to its backward
    inner: int  # how many groups are gathered and released inside its forward

    @property
    def params(self) -> list[FSDPParam]:
        return self.group.fsdp_params

    @property
    def process_group(self) -> torch.distributed.ProcessGroup | None:
        mesh_info = self.group.mesh_info
        return mesh_info.shard_process_group if isinstance(mesh_info, FSDPMeshInfo) else None

    @property
    def world(self) -> int:
        return self.process_group.size() if self.process_group is not None else 1

    def gather_dtype(self, param: FSDPParam) -> torch.dtype:
        """The dtype that forward and backward see."""
        return gather_dtype(self.group, param)

    @property
    def casts(self) -> bool:
        return any(self.gather_dtype(p) != p.sharded_param.dtype for p in self.params)

    def specs(self) -> list[TensorSpec]:
        # Any tensor of a reducible dtype is registered as trainable: requires_grad may change between steps, and the
        # gradients of a call are told by its mask.
        return [
            (name, list(p._orig_size), DTYPES[p.sharded_param.dtype], self.gather_dtype(p) in REDUCIBLE)
            for name, p in zip(self.tensors, self.params, strict=True)
        ]

    def layout(self) -> Layout:
        return Layout(self.name, self.specs(), world=self.world, **self.cast_options())

    def cast_options(self) -> dict[str, object]:
        dtype = self.group.mp_policy.param_dtype
        if not self.casts or dtype is None:
            return {"cast": False}
        return {"cast": True, "gather_dtype": DTYPES[dtype]}


def gather_dtype(group: FSDPParamGroup, param: FSDPParam) -> torch.dtype:
    original = param.sharded_param.dtype
    wanted = group.mp_policy.param_dtype
    return wanted if wanted is not None and original.is_floating_point else original


def fsdp_states(model: nn.Module) -> list[FSDPState]:
    """The FSDP2 states of the model in module order, each once."""
    states: dict[FSDPState, None] = {}
    for module in model.modules():
        if isinstance(module, FSDPModule):
            states[module._get_fsdp_state()] = None
    return list(states)


def param_groups(state: FSDPState) -> list[FSDPParamGroup]:
    if hasattr(state, "_fsdp_param_groups"):  # PyTorch 2.12 and later
        return list(state._fsdp_param_groups)
    return [state._fsdp_param_group] if state._fsdp_param_group is not None else []


def _stays_gathered(state: FSDPState, group: FSDPParamGroup, is_root: bool) -> bool:
    # FSDP2 drops the root's reshard after forward at its first forward, unless the user asked for it.
    return not group._reshard_after_forward or (is_root and bool(getattr(state, "_auto_reshard_after_forward", True)))


def _inner_groups(group: FSDPParamGroup) -> int:
    inner = {
        module._get_fsdp_state()
        for outer in group.modules
        for module in outer.modules()
        if isinstance(module, FSDPModule) and module not in group.modules
    }
    return sum(len(param_groups(state)) for state in inner)


def collect(model: nn.Module) -> Iterator[Unit]:
    """The parameter groups of the model, in module order."""
    names = {module: name for name, module in model.named_modules()}
    taken: set[str] = set()
    for number, state in enumerate(fsdp_states(model)):
        groups = param_groups(state)
        for index, group in enumerate(groups):
            base = ", ".join(names.get(m, "") for m in group.modules) or "(root)"
            name = f"{base} [{index}]" if len(groups) > 1 else base
            while name in taken:
                name += "'"
            taken.add(name)
            tensors = tuple(
                ".".join(part for part in (names.get(p._module_info.module, ""), p._module_info.param_name) if part)
                for p in group.fsdp_params
            )
            is_root = number == 0 and model in group.modules
            yield Unit(name, state, group, tensors, _stays_gathered(state, group, is_root), _inner_groups(group))
