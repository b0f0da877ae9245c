"""The split ops in Triton: importing this needs Triton, and registers the operators `torch.ops.smht_gpu.NAME`.

What calls they take says `smht.ops.gpu_backend`. They were checked in Triton's interpreter and compiled for GPUs; none
has run on one yet.
"""

from smht.ops.gpu import attention, feed_forward, flops, linear

__all__ = ["attention", "feed_forward", "flops", "linear"]

flops.register_formulas()
