"""One group's reduce-scatter: gradients are read where autograd left them and summed into FSDP2's packed output."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.device_mesh import _get_device_handle
from torch.distributed.fsdp._fully_shard._fsdp_common import _raise_assert_with_print, _to_dtype_if_needed
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.tensor import DTensor

from tide._error import Error
from tide.fsdp.groups import DTYPES
from tide.fsdp.seams import TideReduceScatter

if TYPE_CHECKING:
    from tide._tide import Session
    from tide.fsdp.gather import Gather
    from tide.fsdp.groups import Unit


def scaling(factor: float | None, force_sum: bool, world: int) -> tuple[float, float | None]:
    """(alpha, what to divide by afterwards): FSDP2's _get_gradient_divide_factors for an fp32 reduction."""
    if force_sum:
        return 1.0, float(world) if factor is None else factor
    return 1.0 / (world if factor is None else factor), None


class Reduce:
    """Serves FSDP2's foreach_reduce of one group."""

    def __init__(self, session: Session, group_id: int, unit: Unit, gather: Gather | None, arity: int) -> None:
        self.name = unit.name
        self.session = session
        self.group_id = group_id
        self.unit = unit
        self.gather = gather
        self.arity = arity
        self._index = {param: i for i, param in enumerate(unit.params)}

    def install(self) -> None:
        group = self.unit.group
        self._stock_comm = group._reduce_scatter_comm
        group._reduce_scatter_comm = TideReduceScatter(self)

    def uninstall(self) -> None:
        self.unit.group._reduce_scatter_comm = self._stock_comm

    @torch.no_grad()
    def reduce(
        self,
        fsdp_params: list[FSDPParam],
        unsharded_grads: list[torch.Tensor],
        reduce_scatter_group: torch.distributed.ProcessGroup,
        reduce_scatter_stream: torch.Stream,
        reduce_scatter_comm: TideReduceScatter,
        orig_dtype: torch.dtype | None,
        reduce_dtype: torch.dtype | None,
        device: torch.device,
        gradient_divide_factor: float | None,
        all_reduce_group: torch.distributed.ProcessGroup | None,
        all_reduce_stream: torch.Stream,
        all_reduce_grads: bool,
        partial_reduce_output: torch.Tensor | None,
        all_reduce_hook: Callable[[torch.Tensor], None] | None,
        force_sum_reduction_for_comms: bool = False,
    ) -> tuple[Any, ...]:
        """foreach_reduce, with the same results and side effects."""
        grad_dtypes = {grad.dtype for grad in unsharded_grads}
        if len(grad_dtypes) != 1:
            _raise_assert_with_print(f"FSDP reduce-scatter expects uniform gradient dtype but got {grad_dtypes}")
        (grad_dtype,) = grad_dtypes
        if all_reduce_group is not None or (reduce_dtype or grad_dtype) != torch.float32:
            raise Error(
                "unsupported",
                f'group "{self.name}" changed its mesh or reduces in {reduce_dtype or grad_dtype} since '
                "tide.fsdp.enable(): call disable() and enable() again",
            )
        if self.gather is not None:
            self.gather.forget()  # hooks on these gradients may step an optimizer

        alpha, divisor = scaling(gradient_divide_factor, force_sum_reduction_for_comms, self.unit.world)
        output = self._sum(fsdp_params, unsharded_grads, grad_dtype, alpha)
        empty = output.new_empty(0)
        event = reduce_scatter_stream.record_event()

        device_handle = _get_device_handle(device.type)
        post_reduce_stream = reduce_scatter_stream
        if all_reduce_hook is not None:
            post_reduce_stream = all_reduce_stream
            all_reduce_stream.wait_stream(reduce_scatter_stream)
            with device_handle.stream(all_reduce_stream):
                all_reduce_hook(output)
        with device_handle.stream(post_reduce_stream):
            if divisor is not None and divisor != 1:
                output.div_(divisor)
            _assign(fsdp_params, _to_dtype_if_needed(output, orig_dtype))
            post_reduce_event = post_reduce_stream.record_event()
        if self.arity == 6:
            return empty, event, post_reduce_event, None, None, None
        return empty, event, post_reduce_stream, post_reduce_event, None, None, None

    def _sum(
        self, fsdp_params: list[FSDPParam], unsharded_grads: list[torch.Tensor], grad_dtype: torch.dtype, alpha: float
    ) -> torch.Tensor:
        grads = [grad.contiguous() for grad in unsharded_grads]
        addresses = [0] * len(self._index)
        for param, grad in zip(fsdp_params, grads, strict=True):
            addresses[self._index[param]] = grad.data_ptr()
        elements = sum(param.padded_sharded_param_size.numel() for param in fsdp_params)
        output = torch.empty(elements, dtype=torch.float32)
        with torch.profiler.record_function(f"tide::reduce_scatter ({self.name})"):
            self.session.reduce_scatter(
                self.group_id,
                addresses,
                output.data_ptr(),
                elements,
                grad_dtype=DTYPES[grad_dtype],
                alpha=alpha,
            )
        unsharded_grads.clear()  # frees them: the list owns the references
        return output


def _assign(fsdp_params: list[FSDPParam], packed: torch.Tensor) -> None:
    """Views the packed shards as gradients, accumulating and running hooks as FSDP2 does."""
    offset = 0
    for param in fsdp_params:
        grad = torch.as_strided(
            packed, size=param.sharded_size, stride=param.contiguous_sharded_stride, storage_offset=offset
        )
        sharded = param.sharded_param
        if sharded.grad is not None:
            if not isinstance(sharded.grad, DTensor):
                raise AssertionError(f"Expected fsdp_param.sharded_param.grad to be DTensor, got {type(sharded.grad)}")
            sharded.grad._local_tensor += grad
        else:
            sharded.grad = param.to_sharded_dtensor(grad)
        for hook in (getattr(sharded, "_post_accumulate_grad_hooks", {}) or {}).values():
            hook(sharded)
        offset += param.padded_sharded_param_size.numel()
