"""One group's all-gather: shards go straight into the landing, which is the unsharded parameters."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch
import torch.nn as nn
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from tide._error import Error
from tide.fsdp.seams import GATHER_ATTRIBUTE, LandingResult, TideAllGather

if TYPE_CHECKING:
    from tide._tide import Session
    from tide.fsdp.groups import Unit

_live: weakref.WeakSet[Gather] = weakref.WeakSet()
_hooked = False


def _after_any_optimizer_step(optimizer: Optimizer, args: object, kwargs: object) -> None:
    for gather in _live:
        gather.forget()


def _hook_optimizers() -> None:
    global _hooked
    if not _hooked:
        register_optimizer_step_post_hook(_after_any_optimizer_step)
        _hooked = True


class Gather:
    """Serves FSDP2's unshard and reshard of one group.

    The unsharded Parameter objects are made at the first all-gather and live as long as the group, as autograd requires
    (see [Note: FSDP and autograd] in PyTorch); every later all-gather refills the same memory.

    A rank's shards need not move when the landing still holds them. No version counter tells that: foreach optimizers,
    `.data` and writes to `_local_tensor` leave those of a sharded parameter untouched. So they move in every forward,
    and stay only for the backward of that forward, where nothing may have changed them: no gradient of the group
    reduced and no optimizer stepped since.
    """

    def __init__(self, session: Session, group_id: int, unit: Unit, landing: str) -> None:
        self.name = unit.name
        self.session = session
        self.group_id = group_id
        self.unit = unit
        self.landing = landing
        self.leased = False
        self._dtypes = [p.sharded_param.dtype for p in unit.params]
        self._moved: list[tuple[int, int, int]] | None = None  # what this rank last moved into the landing
        self._versions: list[int] | None = None  # of the unsharded parameters since they were gathered
        self._made = False

    # --- Installing -------------------------------------------------------------------------------------------------

    def install(self) -> None:
        group = self.unit.group
        group._to_sharded()
        self._displaced = [(p, p.all_gather_outputs, getattr(p, "_unsharded_param", None)) for p in self.unit.params]
        for param in self.unit.params:
            setattr(param, GATHER_ATTRIBUTE, self)
        self._stock_comm = group._all_gather_comm
        group._all_gather_comm = TideAllGather(self)
        group._to_sharded = self._to_sharded
        group._to_sharded_post_forward = self._to_sharded_post_forward
        group.finalize_backward = self._finalize_backward
        if any(old is not None for _, _, old in self._displaced):
            self._make()
        _live.add(self)
        _hook_optimizers()

    def uninstall(self) -> None:
        group = self.unit.group
        group._all_gather_result = None
        try:
            group._to_sharded()
        finally:
            for name in ("_to_sharded", "_to_sharded_post_forward", "finalize_backward"):
                delattr(group, name)
            group._all_gather_comm = self._stock_comm
            for param in self.unit.params:
                delattr(param, GATHER_ATTRIBUTE)
                if self._made:
                    _restore_stock_param(param, self.unit.gather_dtype(param), self.unit.world)
            _live.discard(self)

    # --- Called by FSDP2 --------------------------------------------------------------------------------------------

    def gather(self, process_group: torch.distributed.ProcessGroup) -> LandingResult:
        """foreach_all_gather: returns once the landing holds every tensor."""
        if process_group.size() != self.unit.world:
            raise Error(
                "unsupported",
                f'group "{self.name}" gathers over {process_group.size()} ranks and was enabled over '
                f"{self.unit.world}: set reshard_after_forward to an int before tide.fsdp.enable(), never after",
            )
        if self.leased:  # an earlier prefetch that FSDP2 dropped
            self._release()
        shards = self._shards()
        addresses = [shard.data_ptr() for shard in shards]
        # What can be seen of a change is looked at too.
        key = [
            (address, p.sharded_param._version, p._sharded_local_tensor._version)
            for address, p in zip(addresses, self.unit.params, strict=True)
        ]
        in_backward = self.unit.group._training_state == TrainingState.PRE_BACKWARD
        unchanged = in_backward and self.landing == "resident" and key == self._moved
        with torch.profiler.record_function(f"tide::all_gather ({self.name})"):
            self.session.all_gather(self.group_id, addresses, unchanged)
        self.leased = True
        self._moved = key
        result = LandingResult(shards[0].new_empty(0), None, None, [], [], [])
        result.gather = self
        return result

    def land(self) -> None:
        """foreach_all_gather_copy_out: there is nothing to copy."""
        if not self._made:
            self._make()
        if self.landing != "private":
            self._versions = [p._unsharded_param._version for p in self.unit.params]

    def forget(self) -> None:
        """This rank's shards may have changed: the next all-gather moves them."""
        self._moved = None

    # --- Instance methods of the FSDPParamGroup ---------------------------------------------------------------------

    def _to_sharded(self) -> None:
        group = self.unit.group
        type(group)._to_sharded(group)
        self._release_if_unused()

    def _finalize_backward(self) -> None:
        group = self.unit.group
        type(group).finalize_backward(group)
        if not group.is_unsharded:
            self._release_if_unused()

    def _to_sharded_post_forward(self) -> None:
        raise Error(
            "unsupported",
            f'group "{self.name}" was asked to reshard to a smaller group after tide.fsdp.enable(): set '
            "reshard_after_forward to an int before enable(), so that the group stays on stock",
        )

    # --- Landing ----------------------------------------------------------------------------------------------------

    def _shards(self) -> list[torch.Tensor]:
        shards = [p._sharded_param_data for p in self.unit.params]
        for name, shard, dtype, param in zip(self.unit.tensors, shards, self._dtypes, self.unit.params, strict=True):
            if shard.dtype != dtype or shard.numel() != param.padded_sharded_param_size.numel() or not shard.is_cpu:
                raise Error(
                    "invalid_argument",
                    f"{name} is now {shard.numel()} elements of {shard.dtype} on {shard.device} and was "
                    f"{param.padded_sharded_param_size.numel()} of {dtype} on cpu at tide.fsdp.enable(): convert the "
                    "model before enable()",
                )
        return shards

    def _make(self) -> None:
        # Inference mode would mark the parameters for good, and training may follow.
        with torch.inference_mode(False), torch.no_grad():
            for index, param in enumerate(self.unit.params):
                dtype = self.unit.gather_dtype(param)
                if param._orig_size.numel() == 0:
                    whole = torch.empty(param._orig_size, dtype=dtype)
                else:
                    # A storage of its own for every parameter: storage_offset 0, nothing else in reach.
                    memory = torch.from_dlpack(self.session.landing(self.group_id, index))
                    whole = memory.view(dtype).view(param._orig_size)
                old = getattr(param, "_unsharded_param", None)
                param.all_gather_outputs = []  # FSDP2 allocates and frees what is listed there
                param._unsharded_param = nn.Parameter(whole, requires_grad=param.sharded_param.requires_grad)
                if old is not None:
                    param._unsharded_param.grad = old.grad  # accumulated without a reduction
        self._made = True

    def _release_if_unused(self) -> None:
        if self.leased and self.unit.group._all_gather_result is None:
            self._release()

    def _release(self) -> None:
        changed = self._changed()
        self.leased = False
        self._versions = None
        if changed is not None:
            self.forget()
        self.session.release(self.group_id)
        if changed is not None:
            raise Error(
                "invalid_argument",
                f"{changed} was written to while gathered, and its memory is shared by the ranks of this machine: "
                'do not modify unsharded parameters, or use tide.fsdp.enable(model, landing="private")',
            )

    def _changed(self) -> str | None:
        if self._versions is None:
            return None
        for name, param, version in zip(self.unit.tensors, self.unit.params, self._versions, strict=True):
            if param._unsharded_param._version != version:
                return name
        return None


def _restore_stock_param(param: FSDPParam, dtype: torch.dtype, world: int) -> None:
    grad = param._unsharded_param.grad
    del param._unsharded_param
    if grad is None:
        return  # the next stock all-gather makes it
    numel = param.padded_sharded_param_size.numel()
    param.init_all_gather_outputs([numel], [dtype], world, torch.device("cpu"))
    param.alloc_all_gather_outputs()
    param.init_unsharded_param()
    param._unsharded_param.grad = grad
    param.free_unsharded_param()
