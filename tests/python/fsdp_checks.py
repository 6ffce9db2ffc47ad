"""Checks of tide.fsdp that run on every rank of a gloo process group; test_fsdp.py starts them.

Each trains the same model twice, on stock FSDP2 with the reference reduce-scatter and on TIDE, and compares the bits of
losses, gradients and parameters after every step.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import tide
import tide.fsdp
import torch
import torch.distributed as dist
import torch.nn as nn
from fsdp_models import (
    BF16,
    FP16,
    FP32,
    FoldReduceScatter,
    Net,
    assert_close_params,
    assert_same_grads,
    assert_same_params,
    bits_of,
    fsdp_modules,
    local,
    loss_of,
    make,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather
from torch.distributed.tensor import Shard
from torch.utils.checkpoint import checkpoint

Models = tuple[Net, Net]
DEADLINE = 30.0


def pair(policy: MixedPrecisionPolicy = FP32, *, enable: dict[str, Any] | None = None, **options: Any) -> Models:
    alpha = options.pop("alpha", None)
    reference = make(policy, fold=True, alpha=alpha, **options)
    mine = make(policy, **options)
    tide.fsdp.enable(mine, deadline=DEADLINE, **(enable or {}))
    return mine, reference


def train(
    models: Models,
    rank: int,
    steps: int = 3,
    *,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    before_step: Callable[[nn.Module, int], object] | None = None,
    first: int = 0,
) -> None:
    optimizers = [optimizer(model.parameters(), lr=0.05) for model in models]
    for step in range(first, first + steps):
        losses = []
        for model in models:
            loss = loss_of(model, step, rank)
            loss.backward()
            losses.append(loss.detach())
        assert torch.equal(bits_of(losses[0]), bits_of(losses[1])), (step, losses)
        results = [before_step(model, step) for model in models] if before_step else []
        assert all(r == results[0] for r in results), (step, results)
        assert_same_grads(*models, step)
        for each in optimizers:
            each.step()
            each.zero_grad()
        assert_same_params(*models, step)


def expect(code: str, call: Callable[[], object], *words: str) -> None:
    try:
        call()
    except tide.Error as error:
        assert error.code == code, error
        for word in words:
            assert word in str(error), error
        return
    raise AssertionError(f"no tide.Error({code})")


# --- Parity ----------------------------------------------------------------------------------------------------------


def parity(rank: int, world: int, policy: MixedPrecisionPolicy, landing: str) -> None:
    mine, reference = pair(policy, enable={"landing": landing})
    table = tide.fsdp.explain(mine)
    assert all((row.all_gather, row.reduce_scatter, row.why) == ("tide", "tide", "") for row in table), str(table)
    train((mine, reference), rank)
    counters = tide.fsdp.stats(mine)
    for index in range(3):
        gathers = counters[f"blocks.{index}"]
        assert (gathers["gathers"], gathers["reduces"]) == (6, 3), counters
        assert gathers["kept"] == (3 if landing == "resident" else 0), counters
    tide.fsdp.disable(mine)


def check_fp32_resident(rank: int, world: int) -> None:
    parity(rank, world, FP32, "resident")


def check_fp32_ring(rank: int, world: int) -> None:
    parity(rank, world, FP32, "ring")


def check_fp32_private(rank: int, world: int) -> None:
    parity(rank, world, FP32, "private")


def check_bf16_resident(rank: int, world: int) -> None:
    parity(rank, world, BF16, "resident")


def check_bf16_ring(rank: int, world: int) -> None:
    parity(rank, world, BF16, "ring")


def check_bf16_private(rank: int, world: int) -> None:
    parity(rank, world, BF16, "private")


def check_fp16(rank: int, world: int) -> None:
    parity(rank, world, FP16, "resident")


def check_bf16_parameters(rank: int, world: int) -> None:
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    mine, reference = pair(policy, change=lambda net: net.to(torch.bfloat16))
    train((mine, reference), rank)


def check_sgd_and_small_chunks(rank: int, world: int) -> None:
    mine, reference = pair(enable={"chunk_bytes": 64})
    train((mine, reference), rank, optimizer=lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9, foreach=False))


# --- What has a gradient, and when -----------------------------------------------------------------------------------


def freeze(net: Net) -> None:
    net.embedding.weight.requires_grad_(False)
    for name, parameter in net.blocks[1].named_parameters():
        parameter.requires_grad_(name == "scale")
    net.blocks[0].up.bias.requires_grad_(False)


def check_frozen(rank: int, world: int) -> None:
    mine, reference = pair(BF16, change=freeze)
    train((mine, reference), rank)
    for model in (mine, reference):
        model.blocks[0].up.bias.requires_grad_(True)
        model.blocks[2].requires_grad_(False)
    train((mine, reference), rank, first=3)
    assert tide.fsdp.stats(mine)["blocks.2"]["reduces"] == 3


def check_all_frozen(rank: int, world: int) -> None:
    mine, reference = pair(change=lambda net: net.blocks[1].requires_grad_(False) and None)
    assert tide.fsdp.explain(mine)["blocks.1"].reduce_scatter == "none"
    train((mine, reference), rank)


def check_unused_block(rank: int, world: int) -> None:
    mine, reference = pair(BF16)
    for skip in (None, 1, 0, None):
        mine.skip = reference.skip = skip
        train((mine, reference), rank, steps=1, first=skip or 5)


def accumulate(rank: int, models: Models) -> None:
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.05) for model in models]
    for step in range(2):
        for micro in range(3):
            for model in models:
                model.set_requires_gradient_sync(micro == 2)
                loss_of(model, 10 * step + micro, rank).backward()
        assert_same_grads(*models, step)
        for each in optimizers:
            each.step()
            each.zero_grad()
        assert_same_params(*models, step)


def check_accumulation_without_sync(rank: int, world: int) -> None:
    accumulate(rank, pair(FP32))
    accumulate(rank, pair(BF16))
    models = pair(BF16, enable={"landing": "ring"})
    for model in models:
        model.set_reshard_after_backward(True)
    accumulate(rank, models)


def check_accumulation_with_sync(rank: int, world: int) -> None:
    models = pair(BF16)
    for micro in range(3):
        for model in models:
            loss_of(model, micro, rank).backward()
        assert_same_grads(*models, micro)


def check_divide_factor(rank: int, world: int) -> None:
    for factor, force_sum in ((world * 1.0, False), (5.0, True), (None, True), (1.0, True)):
        models = pair(BF16)
        for model in models:
            for module in fsdp_modules(model):
                module.set_force_sum_reduction_for_comms(force_sum)
                if factor is not None:
                    module.set_gradient_divide_factor(factor)
        train(models, rank, steps=1)
    # gloo has no scaled sum and some versions cannot even name one: the reference divides by itself.
    mine, reference = pair(alpha=1.0 / 3.0)
    for module in fsdp_modules(mine):
        module.set_gradient_divide_factor(3.0)
    train((mine, reference), rank, steps=1)


def check_mixed_gradient_dtypes(rank: int, world: int) -> None:
    mine, _ = pair(BF16)
    mine.blocks[0].set_requires_gradient_sync(False)
    loss_of(mine, 0, rank).backward()
    group = mine.blocks[0]._get_fsdp_state()._fsdp_param_group
    group.reduce_grads = True
    kept = group.fsdp_params[0].unsharded_accumulated_grad
    assert kept is not None and kept.dtype == torch.float32
    group.fsdp_params[0].unsharded_accumulated_grad = kept.to(torch.bfloat16)
    try:
        loss_of(mine, 0, rank).backward()
    except AssertionError as error:
        assert "uniform gradient dtype" in str(error)
    else:
        raise AssertionError("mixed gradient dtypes were reduced")


# --- FSDP2's options -------------------------------------------------------------------------------------------------


def check_no_reshard_after_forward(rank: int, world: int) -> None:
    for landing in ("resident", "ring", "private"):
        models = pair(BF16, enable={"landing": landing}, reshard_after_forward=False)
        train(models, rank, steps=2)
        assert tide.fsdp.stats(models[0])["blocks.0"]["gathers"] == 2
        tide.fsdp.disable(models[0])


def check_root_reshards(rank: int, world: int) -> None:
    # The root's parameters are in use while every block's come and go.
    for landing in ("ring", "private"):
        models = pair(BF16, enable={"landing": landing}, reshard_after_forward=True)
        train(models, rank, steps=2)
        assert tide.fsdp.stats(models[0])["(root)"]["gathers"] == 4


def check_checkpointing(rank: int, world: int) -> None:
    for reentrant in (False, True):
        models = pair(BF16)
        for model in models:
            for block in model.blocks:
                inner = block.forward
                block.forward = lambda x, inner=inner, r=reentrant: checkpoint(inner, x, use_reentrant=r)
        train(models, rank, steps=2)


class Checkpointed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.inner, x, use_reentrant=False)


def check_checkpointing_around_fsdp(rank: int, world: int) -> None:
    # The recomputation runs the module's own hooks in the middle of the backward.
    models = pair(BF16, enable={"landing": "ring", "ring_depth": 4})
    for model in models:
        model.blocks = nn.ModuleList(Checkpointed(block) for block in model.blocks)
    train(models, rank, steps=2)


def check_explicit_prefetch(rank: int, world: int) -> None:
    models = pair(BF16, enable={"landing": "ring", "ring_depth": 3})
    for model in models:
        blocks = list(model.blocks)
        model.set_modules_to_forward_prefetch(blocks[:1])
        for one, two in itertools.pairwise(blocks):
            one.set_modules_to_forward_prefetch([two])
            two.set_modules_to_backward_prefetch([one])
    train(models, rank, steps=2)


def check_ring_too_shallow(rank: int, world: int) -> None:
    mine, _ = pair(enable={"landing": "ring", "ring_depth": 1})
    loss = loss_of(mine, 0, rank)
    # The backward's prefetch wants the next block's parameters while this one's are in use.
    expect("invalid_argument", loss.backward, "ring_depth")


def check_clipping(rank: int, world: int) -> None:
    def clip(model: nn.Module, step: int) -> float:
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        return norm.full_tensor().item()

    train(pair(BF16), rank, before_step=clip)


def check_all_reduce_hook(rank: int, world: int) -> None:
    models = pair(BF16)
    for model in models:
        for module in fsdp_modules(model):
            module.set_all_reduce_hook(lambda grad: grad.mul_(0.5))
    train(models, rank, steps=2)


def check_optimizer_in_backward(rank: int, world: int) -> None:
    models = pair(BF16)
    for model in models:
        for parameter in model.parameters():
            step = torch.optim.SGD([parameter], lr=0.05)
            parameter.register_post_accumulate_grad_hook(
                lambda p, step=step: (step.step(), step.zero_grad())  # type: ignore[func-returns-value]
            )
    for step in range(3):
        for model in models:
            # Two forwards before two backwards: the second backward needs what the first one's optimizer wrote.
            losses = [loss_of(model, 2 * step + i, rank) for i in range(2)]
            model.set_is_last_backward(False)
            losses[1].backward()
            model.set_is_last_backward(True)
            losses[0].backward()
        assert_same_params(*models, step)


def check_tied_weights(rank: int, world: int) -> None:
    models = pair(BF16, tied=True)
    train(models, rank)
    assert models[0].head.weight is models[0].embedding.weight


def check_two_modules_in_one_group(rank: int, world: int) -> None:
    models = []
    for fold in (False, True):
        torch.manual_seed(3)
        model = Net()
        fully_shard([model.blocks[0], model.blocks[1]], mp_policy=BF16)
        fully_shard(model, mp_policy=BF16)
        if fold:
            for module in fsdp_modules(model):
                module.set_custom_reduce_scatter(FoldReduceScatter())
        models.append(model)
    table = tide.fsdp.enable(models[0], deadline=DEADLINE)
    assert [row.group for row in table] == ["(root)", "blocks.0, blocks.1"], str(table)
    train((models[0], models[1]), rank)


# --- Every change of the shards is seen ------------------------------------------------------------------------------


def check_writes_to_shards(rank: int, world: int) -> None:
    def write_data(model: nn.Module) -> None:
        for parameter in model.parameters():
            parameter.data.mul_(1.25)

    def write_local_tensor(model: nn.Module) -> None:
        for parameter in model.parameters():
            parameter._local_tensor.add_(0.01)

    def write_to_local(model: nn.Module) -> None:
        for parameter in model.parameters():
            parameter.to_local().data.mul_(0.75)

    def copy(model: nn.Module) -> None:
        for parameter in model.parameters():
            parameter.copy_(parameter * 0.5)

    def load(model: nn.Module) -> None:
        model.load_state_dict({name: value * 1.5 for name, value in model.state_dict().items()})

    def load_by_assignment(model: nn.Module) -> None:
        model.load_state_dict({name: value * 0.75 for name, value in model.state_dict().items()}, assign=True)

    writes = (write_data, write_local_tensor, write_to_local, copy, load, load_by_assignment)
    for landing in ("resident", "ring"):
        models = pair(BF16, enable={"landing": landing})
        previous = None
        for write in (None, *writes):  # no optimizer in between, which would move the version counters
            losses = []
            for model in models:
                if write is not None:
                    with torch.no_grad():
                        write(model)
                losses.append(loss_of(model, 0, rank))
                losses[-1].backward()
            assert torch.equal(bits_of(losses[0]), bits_of(losses[1])), write
            assert previous is None or losses[0].item() != previous, write
            previous = losses[0].item()
            assert_same_grads(*models, write)


def check_optimizers(rank: int, world: int) -> None:
    kinds: list[dict[str, bool]] = [{"foreach": True}, {"foreach": False}, {"fused": True}]
    for kind in kinds:
        train(pair(), rank, optimizer=lambda p, lr, kind=kind: torch.optim.AdamW(p, lr=lr, **kind))


def check_state_dict(rank: int, world: int) -> None:
    models = pair(BF16)
    train(models, rank, steps=2)
    states = [{name: value.clone() for name, value in model.state_dict().items()} for model in models]
    train(models, rank, steps=2, first=2)
    for model, state in zip(models, states, strict=True):
        model.load_state_dict(state)
    assert_same_params(*models)
    train(models, rank, steps=2, first=4)
    for model in models:  # between a forward that leaves the root gathered and its backward
        with torch.no_grad():
            loss_of(model, 0, rank)
        for name, value in model.state_dict().items():
            assert value.placements == (Shard(0),), name
    train(models, rank, steps=1, first=6)


def check_evaluation(rank: int, world: int) -> None:
    for context in (torch.inference_mode, torch.no_grad):
        models = pair(BF16, enable={"landing": "ring"})
        for step in range(2):
            results = []
            for model in models:
                model.eval()
                # Stock FSDP2 cannot train after a first forward in inference mode.
                with context() if model is models[0] else torch.no_grad():
                    results.append(loss_of(model, step, rank))
                model.train()
            assert torch.equal(bits_of(results[0].clone()), bits_of(results[1].clone()))
            train(models, rank, steps=1, first=step)


def check_unshard_by_hand(rank: int, world: int) -> None:
    models = pair()
    for model in models:
        handle = model.blocks[1].unshard(async_op=True)
        model.blocks[2].unshard()
        handle.wait()
    a, b = (model.blocks[1].up.weight for model in models)
    assert type(a) is nn.Parameter and torch.equal(bits_of(a), bits_of(b))
    for model in models:
        model.blocks[1].reshard()
        model.blocks[2].reshard()
    train(models, rank, steps=2)


def check_unwaited_prefetch(rank: int, world: int) -> None:
    # A prefetch that nobody waits for is dropped by FSDP2 at the end of the backward; its slot must come free.
    models = pair(enable={"landing": "ring", "ring_depth": 3})
    for model in models:
        model.skip = 1
        model.blocks[0].set_modules_to_forward_prefetch([model.blocks[1]])
    train(models, rank, steps=2)


def check_recovery(rank: int, world: int) -> None:
    models = pair(BF16, enable={"landing": "ring"})
    if not hasattr(models[0]._get_fsdp_state(), "_reset_iter_state"):
        return  # PyTorch 2.11 has no way back
    for model in models:
        inner = model.blocks[1].forward
        model.blocks[1].forward = lambda x: 1 / 0
        with contextlib.suppress(ZeroDivisionError):
            loss_of(model, 0, rank)
        model.blocks[1].forward = inner
        model._get_fsdp_state()._reset_iter_state()
    train(models, rank, steps=2)


def check_meta_device(rank: int, world: int) -> None:
    models = []
    for fold in (False, True):
        with torch.device("meta"):
            model = Net()
        for block in model.blocks:
            fully_shard(block, mp_policy=BF16)
        fully_shard(model, mp_policy=BF16)
        if fold:
            for module in fsdp_modules(model):
                module.set_custom_reduce_scatter(FoldReduceScatter())
        else:
            tide.fsdp.enable(model, deadline=DEADLINE)
        model.to_empty(device="cpu")
        with torch.no_grad():
            for index, parameter in enumerate(model.parameters()):
                shard = local(parameter)
                shard.copy_(
                    torch.linspace(-1, 1, max(1, shard.numel()))[: shard.numel()].view(shard.shape) / (1 + index)
                )
        models.append(model)
    train((models[0], models[1]), rank, steps=2)


# --- Guards ----------------------------------------------------------------------------------------------------------


class Writes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(5, 5))
        self.on = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.on:
            with torch.no_grad():
                self.weight.mul_(2)
        return x @ self.weight


def writing_model() -> nn.Module:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 5), Writes(), nn.Linear(5, 5))
    for module in model:
        fully_shard(module)
    fully_shard(model)
    return model


def check_written_parameter(rank: int, world: int) -> None:
    x = torch.ones(2, 5)
    for landing in ("resident", "ring"):
        model = writing_model()
        tide.fsdp.enable(model, landing=landing, deadline=DEADLINE)
        model(x).sum().backward()
        model[1].on = True
        expect("invalid_argument", lambda model=model: model(x), "1.weight", 'landing="private"')
    mine, reference = writing_model(), writing_model()
    tide.fsdp.enable(mine, landing="private", deadline=DEADLINE)
    for model in (mine, reference):
        model[1].on = True
    with torch.no_grad():
        assert torch.equal(mine(x), reference(x)) and torch.equal(mine(x), reference(x))


def check_lifecycle(rank: int, world: int) -> None:
    models = pair(BF16)
    mine, _ = models
    expect("invalid_argument", lambda: tide.fsdp.enable(mine), "already enabled")
    expect("invalid_argument", lambda: tide.fsdp.enable(mine.blocks[0]), "already enabled")
    train(models, rank, steps=2)
    tide.fsdp.disable(mine)
    tide.fsdp.disable(mine)
    for module in fsdp_modules(mine):
        module.set_custom_reduce_scatter(FoldReduceScatter())
    train(models, rank, steps=2, first=2)
    for module in fsdp_modules(mine):
        module._get_fsdp_state()._fsdp_param_group._reduce_scatter_comm = (
            models[1].blocks[0]._get_fsdp_state()._fsdp_param_group._reduce_scatter_comm
        )
    table = tide.fsdp.enable(mine, deadline=DEADLINE)  # again, on a model that has trained on stock
    assert {row.reduce_scatter for row in table} == {"stock"} and "FoldReduceScatter" in str(table)
    train(models, rank, steps=2, first=4)

    loss = loss_of(mine, 9, rank)
    tide.fsdp.disable(mine)  # a graph that is never used
    del loss
    expect("invalid_argument", lambda: tide.fsdp.stats(mine), "enable")
    expect("invalid_argument", lambda: tide.fsdp.enable(nn.Linear(2, 2)), "fully_shard")
    expect("invalid_argument", lambda: tide.fsdp.enable(mine, landing="heap"), "heap")
    expect("invalid_argument", lambda: tide.fsdp.enable(mine, landing="ring", ring_depth=0), "ring_depth")


def check_switch_during_accumulation(rank: int, world: int) -> None:
    # Gradients that wait for their reduction pass from stock to TIDE and back.
    for policy in (FP32, BF16):
        reference, mine = make(policy, fold=True), make(policy)
        for step, sync in enumerate((False, False, False, True)):
            if step == 1:
                tide.fsdp.enable(mine, deadline=DEADLINE)
            if step == 2:
                tide.fsdp.disable(mine)
            if step == 3:
                tide.fsdp.enable(mine, deadline=DEADLINE)
            for model in (mine, reference):
                model.set_requires_gradient_sync(sync)
                loss_of(model, step, rank).backward()
        assert_same_grads(mine, reference)


def check_late_changes(rank: int, world: int) -> None:
    mine, _ = pair()
    mine.blocks[0].set_custom_all_gather(DefaultAllGather())
    expect("unsupported", lambda: loss_of(mine, 0, rank), "blocks.0", "DefaultAllGather")
    mine, _ = pair()
    mine.to(torch.bfloat16)
    expect("invalid_argument", lambda: loss_of(mine, 0, rank), "bfloat16", "before enable()")


def check_ranks_that_differ(rank: int, world: int) -> None:
    model = make()
    expect("mismatch", lambda: tide.fsdp.enable(model, all_gather=rank != world - 1), "all-gather")
    if rank == 0:
        torch.manual_seed(0)
    # Same decisions, other options: the session compares them.
    expect("mismatch", lambda: tide.fsdp.enable(model, landing="ring" if rank == 1 else "resident", deadline=DEADLINE))


# --- Stock by name ---------------------------------------------------------------------------------------------------


def stays_on_stock(rank: int, build: Callable[[], Net], *words: str, half: str = "both") -> None:
    reference, mine = build(), build()
    predicted = tide.fsdp.explain(mine)
    table = tide.fsdp.enable(mine, deadline=DEADLINE)
    assert [(r.all_gather, r.why) for r in table] == [(r.all_gather, r.why) for r in predicted], str(table)
    assert any(row.why for row in table), str(table)
    for row in table:
        if not row.why:
            continue
        gathers, reduces = {"both": ("stock", "stock"), "gather": ("stock", "tide"), "reduce": ("tide", "stock")}[half]
        assert (row.all_gather, row.reduce_scatter) == (gathers, reduces), str(table)
        for word in words:
            assert word in row.why, str(table)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in (mine, reference)]
    for step in range(2):
        for model, optimizer in zip((mine, reference), optimizers, strict=True):
            loss_of(model, step, rank).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert_close_params(mine, reference, words)
    tide.fsdp.disable(mine)


def check_hsdp(rank: int, world: int) -> None:
    if world % 2:
        return
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    stays_on_stock(rank, lambda: make(mesh=mesh), "HSDP")


def check_other_dim(rank: int, world: int) -> None:
    def placement(parameter: nn.Parameter) -> Shard | None:
        return Shard(1) if parameter.ndim == 2 and parameter.size(1) % world == 0 else None

    def build() -> Net:
        torch.manual_seed(2)
        model = Net(width=8 * world, hidden=world)
        for block in model.blocks:
            fully_shard(block, shard_placement_fn=placement)
        fully_shard(model)
        return model

    stays_on_stock(rank, build, "dim 1")


def check_int_reshard(rank: int, world: int) -> None:
    if world % 2 or world == 2:
        return

    def build() -> Net:
        torch.manual_seed(2)
        model = Net(width=8, hidden=16, vocabulary=16)
        for block in model.blocks:
            del block.scale, block.few, block.unused
            block.forward = lambda x, block=block: x + block.down(torch.tanh(block.up(block.norm(x))))
            fully_shard(block, reshard_after_forward=2)
        fully_shard(model)
        return model

    stays_on_stock(rank, build, "reshard_after_forward", half="gather")


def check_offload(rank: int, world: int) -> None:
    stays_on_stock(rank, lambda: make(offload_policy=CPUOffloadPolicy(pin_memory=False)), "CPUOffloadPolicy")


def check_reduce_in_bf16(rank: int, world: int) -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    stays_on_stock(rank, lambda: make(policy), "bfloat16", half="reduce")


def check_own_comms(rank: int, world: int) -> None:
    class Own(DefaultAllGather):
        pass

    def build() -> Net:
        model = make()
        model.blocks[1].set_custom_all_gather(Own())
        return model

    stays_on_stock(rank, build, "Own", half="gather")


def check_double(rank: int, world: int) -> None:
    def change(net: Net) -> None:
        net.blocks[1].double()
        inner = net.blocks[1].forward
        net.blocks[1].forward = lambda x: inner(x.double()).float()

    stays_on_stock(rank, lambda: make(change=change), "float64", half="reduce")


def check_halves(rank: int, world: int) -> None:
    mine, reference = pair(BF16, enable={"all_gather": False})
    assert all((row.all_gather, row.reduce_scatter) == ("stock", "tide") for row in tide.fsdp.explain(mine))
    train((mine, reference), rank)
    mine = make(BF16)
    for module in fsdp_modules(mine):
        module.set_custom_reduce_scatter(FoldReduceScatter())
    table = tide.fsdp.enable(mine, reduce_scatter=False, deadline=DEADLINE)
    assert all((row.all_gather, row.reduce_scatter) == ("tide", "stock") for row in table)
    assert "reduce_scatter=False" in str(table)
    train((mine, make(BF16, fold=True)), rank)


def check_warning_free(rank: int, world: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=FutureWarning)
        models = pair(BF16)
        train(models, rank, steps=1)
        tide.fsdp.disable(models[0])


CHECKS: dict[str, Callable[[int, int], None]] = {
    name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")
}
# What does not depend on the number of ranks runs with one of them.
EVERYWHERE = (
    "fp32_resident",
    "fp32_ring",
    "bf16_resident",
    "bf16_private",
    "frozen",
    "unused_block",
    "accumulation_without_sync",
)
# These end the session or leave a step unfinished, so each has a job of its own.
ALONE = ("ring_too_shallow", "written_parameter", "mixed_gradient_dtypes", "late_changes", "ranks_that_differ")


def run_checks(rank: int, world: int, folder: str, names: list[str]) -> dict[str, str]:
    """The error text of every check, empty for those that passed; none is run after one that failed."""
    import traceback

    from ranks import process_group

    done: dict[str, str] = {}
    with process_group(rank, world, folder):
        for name in names:
            try:
                CHECKS[name](rank, world)
                done[name] = ""
            except BaseException as error:
                done[name] = "".join(traceback.format_exception(error))
                break
            dist.barrier()
    return done
