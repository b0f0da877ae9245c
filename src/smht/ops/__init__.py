"""Functions on tensors that split layers are made of.

Each op has one contract (`smht.ops.contract`: shapes, masks, dropout; `smht.ops.loss`) and one plain
reference (`smht.ops.reference`) that defines its result. A backend may replace the
reference where its table says so (`smht.ops.backend`).

Axis letters: `B` batch, `T` tokens, `D` hidden size, `H` heads, `K` head width `D / H`,
`F` feed-forward width, `G` feed-forward width of a head `F / H`, `V` vocabulary.
"""

from smht.ops.backend import BACKENDS, explain, get_backend, set_backend
from smht.ops.contract import split_attention, split_feed_forward, split_linear
from smht.ops.decode import split_decode
from smht.ops.decoder_weights import DecoderWeights
from smht.ops.loss import linear_cross_entropy
from smht.ops.permute import permute_channels
from smht.ops.sparse_attention import block_sparse_attention, block_sparse_decode, block_sparse_mask

__all__ = [
    "BACKENDS",
    "DecoderWeights",
    "block_sparse_attention",
    "block_sparse_decode",
    "block_sparse_mask",
    "explain",
    "get_backend",
    "linear_cross_entropy",
    "permute_channels",
    "set_backend",
    "split_attention",
    "split_decode",
    "split_feed_forward",
    "split_linear",
]
