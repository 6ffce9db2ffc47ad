"""Trains one Llama-style model twice, on stock FSDP2 over gloo and on TIDE, and compares: `python -m tide.demo --help`.

Both runs have the same weights, data and compute kernels. Weights are gathered in bf16; on a CPU without AVX-512,
where PyTorch's bf16 matrix products run a hundred times slower than its fp32 ones, products and attention are computed
in fp32 and rounded back to bf16, in both runs alike (model.py).
"""
