"""The split ops in Triton, for NVIDIA GPUs: the functions of `smht.ops.reference` under the same names.

Importing this needs Triton. What the kernels do not take, `conditions` says. They are not in the backend table yet:
they were checked in Triton's interpreter and compiled for GPUs, and have to run on one first (`benchmarks/gpu.sh`).
"""

from smht.ops.gpu.attention import split_attention
from smht.ops.gpu.conditions import attention_obstacle, feed_forward_obstacle, linear_obstacle
from smht.ops.gpu.feed_forward import split_feed_forward
from smht.ops.gpu.flops import register_formulas
from smht.ops.gpu.linear import split_linear

register_formulas()

__all__ = [
    "attention_obstacle",
    "feed_forward_obstacle",
    "linear_obstacle",
    "split_attention",
    "split_feed_forward",
    "split_linear",
]
