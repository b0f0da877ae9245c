"""What the GPU kernels do not take: one function an op, with the op's signature, that says why, or None.

| condition | why |
|---|---|
| tensors on an NVIDIA GPU of compute capability 8.0 or above (or Triton's interpreter) | tensor cores with bfloat16 |
| all of one dtype among float32, float16, bfloat16, or autocast to one | kernels mix none; float64 is the reference's |
| feed-forward: K up to 256; attention: K up to 128; half of that in float32 | a tile holds a head's whole width |
| attention: no rotation of queries and keys | not in its kernels |
| attention: no gradient by the mask | it would take `[B, H, T, T]` of memory |
| attention with dropout: T up to 65,536 | one 32-bit counter a weight |
"""

import torch
from torch import Tensor

from smht.ops.gpu.tiles import DTYPES, INTERPRETED

MAX_FEED_FORWARD_WIDTH = 256
MAX_ATTENTION_WIDTH = 128
MAX_DROPOUT_TOKENS = 1 << 16


def linear_obstacle(x: Tensor, weight: Tensor, bias: Tensor | None) -> str | None:
    """Why the kernels cannot run `split_linear` on these, or None."""
    return _common_obstacle(x, weight, bias)


def feed_forward_obstacle(
    x: Tensor,
    up_weight: Tensor,
    down_weight: Tensor,
    activation: str,
    up_bias: Tensor | None,
    down_bias: Tensor | None,
) -> str | None:
    """Why the kernels cannot run `split_feed_forward` on these, or None."""
    return _common_obstacle(x, up_weight, down_weight, up_bias, down_bias) or _width_obstacle(
        x, up_weight.shape[1], MAX_FEED_FORWARD_WIDTH
    )


def attention_obstacle(
    x: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    v_weight: Tensor,
    o_weight: Tensor,
    is_causal: bool,
    mask: Tensor | None,
    dropout: float,
    scale: float,
    cosines: Tensor | None = None,
    sines: Tensor | None = None,
) -> str | None:
    """Why the kernels cannot run `split_attention` on these, or None."""
    if cosines is not None or sines is not None:
        return "queries and keys are to be turned"
    if mask is not None and mask.requires_grad:
        return "the mask takes a gradient"
    if mask is not None and mask.device != x.device:
        return f"the mask is on {mask.device}, x on {x.device}"
    if dropout and x.shape[1] > MAX_DROPOUT_TOKENS:
        return f"dropout over {x.shape[1]} tokens, more than {MAX_DROPOUT_TOKENS}"
    return _common_obstacle(x, q_weight, k_weight, v_weight, o_weight) or _width_obstacle(
        x, q_weight.shape[1], MAX_ATTENTION_WIDTH
    )


def _common_obstacle(*tensors: Tensor | None) -> str | None:
    given = [tensor for tensor in tensors if tensor is not None]
    devices = sorted({str(tensor.device) for tensor in given})
    if len(devices) > 1:
        return f"tensors on several devices: {', '.join(devices)}"
    device = given[0].device
    if device.type != ("cpu" if INTERPRETED else "cuda"):
        return f"tensors on {device.type}"
    if not INTERPRETED and torch.cuda.get_device_capability(device) < (8, 0):
        return f"{torch.cuda.get_device_name(device)} is older than compute capability 8.0"
    dtypes = {tensor.dtype for tensor in given}
    if torch.is_autocast_enabled(device.type) and torch.float64 not in dtypes:
        return None
    if len(dtypes) > 1:
        return f"tensors of several dtypes: {', '.join(sorted(map(_name, dtypes)))}"
    if given[0].dtype not in DTYPES:
        return f"dtype {_name(given[0].dtype)}"
    return None


def _width_obstacle(x: Tensor, head_dim: int, limit: int) -> str | None:
    is_cast = torch.is_autocast_enabled(x.device.type)
    if x.dtype == torch.float32 and not is_cast:
        limit //= 2
    return f"head width {head_dim} is above {limit}" if head_dim > limit else None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
