"""Stock FSDP2 with a defined order of summation, to compare TIDE's results with bit by bit.

gloo's own reduction sums each element in an order that depends on the ring and the buffer's size. This one adds the
ranks' contributions from rank 0 to rank N-1 in fp32 and multiplies by float32(1/N) at the end, which is what TIDE does
on one machine.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter


class ReferenceReduceScatter(ReduceScatter):
    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp,
        async_op: bool = False,
    ) -> None:
        if op not in (dist.ReduceOp.AVG, dist.ReduceOp.SUM):
            raise ValueError(f"ReferenceReduceScatter sums or averages, not {op}")
        if async_op:
            raise ValueError("ReferenceReduceScatter is done when it returns: call it with async_op=False")
        ranks = group.size()
        received = torch.empty_like(input_tensor)
        dist.all_to_all_single(received, input_tensor, group=group)
        first, *others = received.view(ranks, -1).unbind()
        total = first.clone()
        for contribution in others:
            total += contribution
        if op == dist.ReduceOp.AVG:
            total *= torch.tensor(1 / ranks, dtype=total.dtype)
        output_tensor.copy_(total.view_as(output_tensor))


def use_reference(model: torch.nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_custom_reduce_scatter(ReferenceReduceScatter())
