"""Why a half of a parameter group (its all-gather, its reduce-scatter) runs on stock FSDP2.

A decision is a function of the model, its shapes and its options only, so every rank comes to the same one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, HSDPMeshInfo

from tide.fsdp.groups import DTYPES, REDUCIBLE, Unit


@dataclass(frozen=True)
class Verdict:
    """None: TIDE. Otherwise the reason for stock."""

    all_gather: str | None
    reduce_scatter: str | None
    trains: bool  # the group has a trainable parameter

    @property
    def uses_tide(self) -> bool:
        return self.all_gather is None or self.reduce_scatter is None

    @property
    def why(self) -> str:
        reduce = self.reduce_scatter if self.trains else None
        if self.all_gather == reduce:
            return reduce or ""
        parts = [("all-gather", self.all_gather), ("reduce-scatter", reduce)]
        return "; ".join(f"{half}: {reason}" for half, reason in parts if reason)


def judge(unit: Unit, *, all_gather: bool = True, reduce_scatter: bool = True) -> Verdict:
    both = _group_reason(unit) or _tensor_reason(unit)
    gather_reason = both or (None if all_gather else "all_gather=False was passed") or _gather_reason(unit)
    reduce_reason = both or (None if reduce_scatter else "reduce_scatter=False was passed") or _reduce_reason(unit)
    return Verdict(gather_reason, reduce_reason, any(p.sharded_param.requires_grad for p in unit.params))


def _group_reason(unit: Unit) -> str | None:
    group, mesh_info = unit.group, unit.group.mesh_info
    if not unit.params:
        return "the group has no parameters"
    if isinstance(mesh_info, HSDPMeshInfo):
        return "HSDP mesh: the shards are also replicated"
    if not isinstance(mesh_info, FSDPMeshInfo):
        return "the mesh has no shard dimension"
    if mesh_info.shard_process_group.size() == 1:
        return "the shard group has one rank: nothing to communicate"
    if group.device.type != "cpu":
        return f"parameters are on {group.device.type}: this runtime serves CPU tensors"
    if any(p.offload_to_cpu for p in unit.params):
        return "CPU offload (CPUOffloadPolicy)"
    return None


def _tensor_reason(unit: Unit) -> str | None:
    for name, param in zip(unit.tensors, unit.params, strict=True):
        local = param._sharded_local_tensor
        if param.is_dtensor:
            return f"{name} is a DTensor (tensor or expert parallel)"
        if param.fsdp_placement.dim != 0:
            return f"{name} is sharded on dim {param.fsdp_placement.dim}: only Shard(0) is served"
        if hasattr(local, "fsdp_pre_all_gather"):
            return f"{name} is a {type(local).__name__} with its own fsdp_pre_all_gather"
        if type(local) is not torch.Tensor:
            return f"{name} is a {type(local).__name__}, a tensor subclass"
        dtype, gathered = param.sharded_param.dtype, unit.gather_dtype(param)
        for each in (dtype, gathered):
            if each not in DTYPES:
                return f"{name} has dtype {each}"
        if dtype != gathered and not (dtype in REDUCIBLE and gathered in REDUCIBLE):
            return f"{name} is gathered as {gathered} from {dtype}: only fp32, bf16 and fp16 convert"
    return None


def _gather_reason(unit: Unit) -> str | None:
    if unit.group._use_post_forward_mesh:
        return "reshard_after_forward is an int: parameters reshard to a smaller group"
    comm = unit.group._all_gather_comm
    if type(comm) is not DefaultAllGather:
        return f"the module has its own all-gather ({type(comm).__name__})"
    return None


def _reduce_reason(unit: Unit) -> str | None:
    comm = unit.group._reduce_scatter_comm
    if type(comm) is not DefaultReduceScatter:
        return f"the module has its own reduce-scatter ({type(comm).__name__})"
    for name, param in zip(unit.tensors, unit.params, strict=True):
        if not param.sharded_param.requires_grad:
            continue
        grad_dtype = unit.gather_dtype(param)
        if grad_dtype not in REDUCIBLE:
            return f"{name} has {grad_dtype} gradients: only fp32, bf16 and fp16 are summed"
        if (reduced := unit.group.mp_policy.reduce_dtype or grad_dtype) != torch.float32:
            return (
                f"gradients reduce in {reduced}: TIDE sums in fp32 (MixedPrecisionPolicy(reduce_dtype=torch.float32))"
            )
    return None
