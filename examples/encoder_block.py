"""Seed 001's experiment with an encoder block, on this library: shapes, parameters, post-norm, order, pre-norm.

Weights and input come out of the generator in the article's order (seed 0; q, k, v and output, then the two of the
feed-forward; the input; then the pre-norm block), so every number is the article's.

    python examples/encoder_block.py
"""

import torch
from torch import Tensor, nn

from smht.layers import EncoderBlock
from smht.layers.position import SinusoidalPositions

WIDTH, HEADS, HIDDEN, TOKENS = 16, 4, 32, 5
ORDER = [2, 0, 3, 4, 1]


def dense_block(norm_placement: str) -> EncoderBlock:
    """The article's block: dense, with biases."""
    return EncoderBlock(WIDTH, HEADS, HIDDEN, norm_placement=norm_placement, split=(), bias=True)


def count(*modules: nn.Module) -> int:
    """Parameters of the modules together."""
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


def mean_and_deviation(output: Tensor) -> tuple[list[float], list[float]]:
    """Over the channels of each token of the first text, rounded as the article prints them."""
    mean, deviation = output[0].mean(1), output[0].std(1, correction=0)
    return [round(x, 3) + 0.0 for x in mean.tolist()], [round(x, 3) for x in deviation.tolist()]


@torch.no_grad()
def measure() -> dict[str, object]:
    """Every number that the article prints, by what it is."""
    torch.manual_seed(0)
    block = dense_block("post")
    x = torch.randn(2, TOKENS, WIDTH)
    output, weights = block(x, return_weights=True)
    found: dict[str, object] = {
        "shape of the output": tuple(output.shape),
        "shape of the attention weights": tuple(weights.shape),
        "parameters of attention": count(block.self_attn),
        "parameters of the feed-forward": count(block.mlp),
        "parameters of both norms": count(block.input_layernorm, block.post_attention_layernorm),
        "parameters": count(block),
    }
    found["post-norm: mean of each token"], found["post-norm: deviation of each token"] = mean_and_deviation(output)

    found["permuted tokens give the permuted output"] = torch.allclose(output[:, ORDER], block(x[:, ORDER]), atol=1e-5)
    positions = SinusoidalPositions(TOKENS, WIDTH).embed(torch.arange(TOKENS))
    difference = (block(x + positions) - block(x[:, ORDER] + positions[ORDER])).abs().max().item()
    found["with positions: largest difference"] = round(difference, 3)

    output = dense_block("pre")(x)
    found["pre-norm: mean of each token"], found["pre-norm: deviation of each token"] = mean_and_deviation(output)
    stack = nn.Sequential(dense_block("post"), dense_block("post"))
    found["shape of the output of two blocks"] = tuple(stack(x).shape)
    return found


if __name__ == "__main__":
    for name, value in measure().items():
        print(f"{name:42} {value}")
