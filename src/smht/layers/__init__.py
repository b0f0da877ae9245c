"""Transformer layers whose projections are block-diagonal per head or dense, by choice.

Plain `torch.nn` modules with explicit arguments: no configuration object, nothing of transformers.

Axis letters: `B` batch, `T` tokens, `D` hidden size, `H` heads, `K` head width `D / H`,
`F` feed-forward width, `G` feed-forward width of a head `F / H`.
"""

from smht.layers.attention import MultiHeadAttention
from smht.layers.attention_functions import AttentionFunction, eager_attention, sdpa_attention
from smht.layers.block import Block
from smht.layers.encoder_block import EncoderBlock
from smht.layers.feed_forward import FeedForward
from smht.layers.mixing import ChannelShuffle, shuffle_order
from smht.layers.norm import HeadLayerNorm, make_norm
from smht.layers.position import PositionEncoding, make_position_encoding
from smht.layers.projection import SplitLinear, fan_in_of, make_projection

__all__ = [
    "AttentionFunction",
    "Block",
    "ChannelShuffle",
    "EncoderBlock",
    "FeedForward",
    "HeadLayerNorm",
    "MultiHeadAttention",
    "PositionEncoding",
    "SplitLinear",
    "eager_attention",
    "fan_in_of",
    "make_norm",
    "make_position_encoding",
    "make_projection",
    "sdpa_attention",
    "shuffle_order",
]
