"""Models and a reference reduce-scatter for the FSDP2 tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter


class FoldReduceScatter(ReduceScatter):
    """Sums the ranks' inputs in rank order from the first on, then multiplies by alpha: what TIDE promises."""

    def __init__(self, alpha: float | None = None) -> None:
        self.alpha = alpha

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        world, rank = group.size(), group.rank()
        inputs = [torch.empty_like(input_tensor) for _ in range(world)]
        dist.all_gather(inputs, input_tensor, group=group)
        total = inputs[0].view(world, -1)[rank].clone()
        for other in inputs[1:]:
            total += other.view(world, -1)[rank]
        alpha = self.alpha if self.alpha is not None else 1.0 / world if op == dist.ReduceOp.AVG else 1.0
        output_tensor.copy_(total * torch.tensor(alpha, dtype=torch.float32))


class Block(nn.Module):
    """Uneven dim 0, a dim 0 below the world size, a parameter of one element, one without gradient."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width, bias=False)
        self.scale = nn.Parameter(torch.full((1,), 0.75))
        self.few = nn.Parameter(torch.randn(2, width) * 0.1)
        self.unused = nn.Parameter(torch.randn(3, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(torch.tanh(self.up(self.norm(x)))) * self.scale
        return x + y + self.few.sum(0)


class Net(nn.Module):
    """Embedding and head may share their weight, which then belongs to the root's group."""

    def __init__(self, width: int = 10, hidden: int = 13, blocks: int = 3, vocabulary: int = 11, tied: bool = False):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, hidden) for _ in range(blocks))
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        self.skip: int | None = None

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for index, block in enumerate(self.blocks):
            if index != self.skip:
                x = block(x)
        return self.head(x)


BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
FP16 = MixedPrecisionPolicy(param_dtype=torch.float16, reduce_dtype=torch.float32)
FP32 = MixedPrecisionPolicy()


def make(
    policy: MixedPrecisionPolicy = FP32,
    change: Callable[[Net], None] | None = None,
    *,
    seed: int = 7,
    tied: bool = False,
    fold: bool = False,
    alpha: float | None = None,
    **options: Any,
) -> Net:
    """A sharded Net. fold: on stock FSDP2 with the reference reduce-scatter."""
    torch.manual_seed(seed)
    model = Net(tied=tied)
    if change is not None:
        change(model)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy, **options)
    fully_shard(model, mp_policy=policy, **options)
    if fold:
        for module in fsdp_modules(model):
            module.set_custom_reduce_scatter(FoldReduceScatter(alpha))
    return model


def fsdp_modules(model: nn.Module) -> list[FSDPModule]:
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def loss_of(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    tokens = torch.randint(0, 11, (4, 6), generator=generator)
    out = model(tokens).float()
    return nn.functional.cross_entropy(out.flatten(0, 1), (tokens * 7 + 3).flatten() % 11)


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def assert_same_grads(mine: nn.Module, reference: nn.Module, where: object = "") -> None:
    for (name, a), (_, b) in zip(mine.named_parameters(), reference.named_parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None), (where, name, "gradient present")
        if a.grad is not None:
            assert a.grad.dtype == b.grad.dtype and a.grad.placements == b.grad.placements, (where, name)
            assert torch.equal(bits_of(local(a.grad)), bits_of(local(b.grad))), (where, name, "gradient")


def assert_same_params(mine: nn.Module, reference: nn.Module, where: object = "") -> None:
    for (name, a), (_, b) in zip(mine.named_parameters(), reference.named_parameters(), strict=True):
        assert torch.equal(bits_of(local(a)), bits_of(local(b))), (where, name, "parameter")


def assert_close_params(mine: nn.Module, reference: nn.Module, where: object = "") -> None:
    for (name, a), (_, b) in zip(mine.named_parameters(), reference.named_parameters(), strict=True):
        torch.testing.assert_close(local(a).detach(), local(b).detach(), msg=f"{where} {name}")
