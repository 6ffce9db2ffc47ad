"""Where TIDE enters FSDP2: three functions that its parameter groups look up by name, replaced once by dispatchers.

A dispatcher goes to TIDE only when the group's own comm object, or the result that TIDE's all-gather returned, says so;
every other group of the process keeps running what stood there before.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.distributed.fsdp._fully_shard._fsdp_param_group as param_group
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter

from tide._error import Error

if TYPE_CHECKING:
    from tide.fsdp.gather import Gather
    from tide.fsdp.reduce import Reduce

SIGNATURES: dict[str, tuple[str, ...]] = {
    "foreach_all_gather": (
        "fsdp_params",
        "group",
        "async_op",
        "all_gather_copy_in_stream",
        "all_gather_stream",
        "device",
        "all_gather_comm",
    ),
    "foreach_all_gather_copy_out": ("all_gather_result", "fsdp_params", "group"),
    "foreach_reduce": (
        "fsdp_params",
        "unsharded_grads",
        "reduce_scatter_group",
        "reduce_scatter_stream",
        "reduce_scatter_comm",
        "orig_dtype",
        "reduce_dtype",
        "device",
        "gradient_divide_factor",
        "all_reduce_group",
        "all_reduce_stream",
        "all_reduce_grads",
        "partial_reduce_output",
        "all_reduce_hook",
        "force_sum_reduction_for_comms",
    ),
}

# PyTorch 2.11 and 2.12 return six values from foreach_reduce, 2.13 adds the stream of the post-reduce work.
REDUCE_ARITIES = (6, 7)

MARK = "_tide_dispatcher"
GATHER_ATTRIBUTE = "_tide_gather"  # on an FSDPParam whose unsharded parameter is a TIDE landing


def _refuse_direct_call(what: str) -> NoReturn:
    raise Error(
        "unsupported",
        f"FSDP2 called TIDE's {what} object directly, so another library has replaced TIDE's dispatcher: "
        "import it before tide.fsdp.enable(), or call tide.fsdp.disable(model)",
    )


class TideAllGather(AllGather):
    """Marks a group whose all-gather TIDE runs."""

    def __init__(self, gather: Gather) -> None:
        self.gather = gather

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        _refuse_direct_call("all-gather")

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        _refuse_direct_call("all-gather")


class TideReduceScatter(ReduceScatter):
    """Marks a group whose reduce-scatter TIDE runs."""

    def __init__(self, reduce: Reduce) -> None:
        self.reduce = reduce

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        _refuse_direct_call("reduce-scatter")

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        _refuse_direct_call("reduce-scatter")


class LandingResult(param_group.AllGatherResult):
    """An all-gather whose output already stands in the landing."""

    gather: Gather


def _check(name: str) -> Callable[..., Any]:
    function = getattr(param_group, name, None)
    if function is None:
        raise Error(
            "unsupported",
            f"PyTorch {torch.__version__} has no {param_group.__name__}.{name}: tide.fsdp needs PyTorch 2.11 to 2.13",
        )
    found = tuple(inspect.signature(function).parameters)
    if found != SIGNATURES[name]:
        raise Error(
            "unsupported",
            f"PyTorch {torch.__version__}'s {name} takes ({', '.join(found)}) and tide.fsdp replaces one that takes "
            f"({', '.join(SIGNATURES[name])}): use PyTorch 2.11 to 2.13",
        )
    return function


@functools.cache
def reduce_arity() -> int:
    """How many values this PyTorch's foreach_reduce returns."""
    function = _check("foreach_reduce")
    returns = typing.get_type_hints(inspect.unwrap(function)).get("return")
    arity = len(typing.get_args(returns))
    if arity not in REDUCE_ARITIES:
        raise Error(
            "unsupported",
            f"PyTorch {torch.__version__}'s foreach_reduce returns {returns} and tide.fsdp knows tuples of 6 or 7: "
            "use PyTorch 2.11 to 2.13",
        )
    return arity


def _dispatch_all_gather(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def foreach_all_gather(
        fsdp_params, group, async_op, all_gather_copy_in_stream, all_gather_stream, device, all_gather_comm
    ):
        if isinstance(all_gather_comm, TideAllGather):
            return all_gather_comm.gather.gather(group)
        for fsdp_param in fsdp_params:
            if (gather := getattr(fsdp_param, GATHER_ATTRIBUTE, None)) is not None:
                raise Error(
                    "unsupported",
                    f'the all-gather of group "{gather.name}" was replaced by {type(all_gather_comm).__name__} after '
                    "tide.fsdp.enable(): set it before enable(), or call tide.fsdp.disable(model) first",
                )
        return stock(
            fsdp_params, group, async_op, all_gather_copy_in_stream, all_gather_stream, device, all_gather_comm
        )

    return foreach_all_gather


def _dispatch_copy_out(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def foreach_all_gather_copy_out(all_gather_result, fsdp_params, group):
        if isinstance(all_gather_result, LandingResult):
            return all_gather_result.gather.land()
        return stock(all_gather_result, fsdp_params, group)

    return foreach_all_gather_copy_out


def _dispatch_reduce(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def foreach_reduce(fsdp_params, unsharded_grads, reduce_scatter_group, reduce_scatter_stream, reduce_scatter_comm,
                       *args, **kwargs):  # fmt: skip
        call = (fsdp_params, unsharded_grads, reduce_scatter_group, reduce_scatter_stream, reduce_scatter_comm)
        if isinstance(reduce_scatter_comm, TideReduceScatter):
            return reduce_scatter_comm.reduce.reduce(*call, *args, **kwargs)
        return stock(*call, *args, **kwargs)

    return foreach_reduce


def install() -> None:
    """Puts the dispatchers in place, once a process. Throws Error(unsupported) naming what this PyTorch has instead."""
    reduce_arity()
    found = {name: _check(name) for name in SIGNATURES}
    wrap = {
        "foreach_all_gather": _dispatch_all_gather,
        "foreach_all_gather_copy_out": _dispatch_copy_out,
        "foreach_reduce": _dispatch_reduce,
    }
    for name, function in found.items():
        if not hasattr(function, MARK):
            dispatcher = wrap[name](function)
            setattr(dispatcher, MARK, True)
            setattr(param_group, name, dispatcher)
