"""A Llama-style model, and compute kernels that are sane on any CPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from tide.demo.corpus import VOCABULARY

ATTENTION = "tide_demo"


@dataclass(frozen=True)
class Size:
    hidden: int
    intermediate: int
    layers: int
    heads: int
    vocabulary: int
    sequence: int = 256  # tokens that attend to each other; more tokens a rank are more sequences


SIZES = {
    "demo": Size(hidden=384, intermediate=1024, layers=4, heads=6, vocabulary=VOCABULARY["demo"]),
    "small": Size(hidden=128, intermediate=352, layers=3, heads=4, vocabulary=VOCABULARY["small"]),
}


def widens() -> bool:
    """Whether products are computed in fp32: PyTorch's bf16 kernels for CPUs are built for AVX-512."""
    return not torch.backends.cpu.get_cpu_capability().startswith("AVX512")


class _WideProduct(torch.autograd.Function):
    """x @ weight.T on bf16 tensors through fp32 products. Saves the bf16 tensors, as the native kernel does."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return (x.float() @ weight.float().t()).to(x.dtype)

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        wide = grad.float()
        grad_x = (wide @ weight.float()).to(x.dtype)
        grad_weight = wide.flatten(0, -2).t() @ x.float().flatten(0, -2)
        return grad_x, grad_weight.to(weight.dtype)


class WideLinear(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _WideProduct.apply(x, self.weight)


def _attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    """Causal attention over full sequences; in fp32 where the CPU's bf16 kernel is slow."""
    operands = (query, key, value)
    if widens():
        operands = tuple(x.float() for x in operands)
    out = F.scaled_dot_product_attention(*operands, is_causal=True, scale=scaling, enable_gqa=query.shape != key.shape)
    return out.to(query.dtype).transpose(1, 2).contiguous(), None


def build(size: Size, mesh: DeviceMesh, seed: int) -> nn.Module:
    """The same weights on every call with one seed: fp32 shards, gathered in bf16, gradients reduced in fp32."""
    ALL_ATTENTION_FUNCTIONS.register(ATTENTION, _attention)
    config = LlamaConfig(
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        vocab_size=size.vocabulary,
        max_position_embeddings=size.sequence,
        tie_word_embeddings=False,
        use_cache=False,
        attn_implementation=ATTENTION,
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    if widens():
        for module in model.modules():
            if type(module) is nn.Linear:
                module.__class__ = WideLinear
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model
