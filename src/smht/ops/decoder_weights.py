"""All blocks of a split decoder as `smht.ops.split_decode` takes them."""

from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from smht.errors import UsageError, did_you_mean
from smht.ops.activation import ACTIVATIONS

PROJECTIONS = ("q", "k", "v", "o", "up", "down")
"""What a block has six of."""


@dataclass(frozen=True)
class DecoderWeights:
    """The tensors of `N` blocks, in the order in which they are used, and how the blocks are made.

    Attributes:
        projections: 6N, of each block q, k, v and o `[H, K, K]`, up `[H, K, G]` and down `[H, G, K]`.
        norm_weights: `[D]` each, in residual order: 2N where norms stand after the residual sums, and one more, after
            all blocks, where they stand before the sub-layers.
        norm_biases: as many, `[D]` each.
        biases: none, or 6N in the order of `projections`, `[D]` each but `[H·G]` for up.
        orders: none, or N, `[D]` each: the residual channel at each place of a block's order (`shuffle_order`).
        activation: a name in `smht.ops.activation.ACTIVATIONS`.
        eps: added to the variance in the norms.
        norm_per_head: whether a norm is over each head's channels, in its block's order, rather than over all of `D`.
        norm_after: whether norms stand after the residual sums rather than before the sub-layers.

    Raises:
        UsageError: numbers of tensors or shapes that do not fit, or an unknown activation.
    """

    projections: list[Tensor]
    norm_weights: list[Tensor]
    norm_biases: list[Tensor]
    biases: list[Tensor] = field(default_factory=list[Tensor])
    orders: list[Tensor] = field(default_factory=list[Tensor])
    activation: str = "gelu"
    eps: float = 1e-5
    norm_per_head: bool = False
    norm_after: bool = False

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise UsageError(
                f"no activation is called {self.activation!r}: {did_you_mean(self.activation, ACTIVATIONS)}"
            )
        if not self.projections or len(self.projections) % len(PROJECTIONS):
            raise UsageError(
                f"split_decode: projections must be six a block, {', '.join(PROJECTIONS)}; got {len(self.projections)}"
            )
        self._check_projections()
        norms = 2 * self.num_blocks + (not self.norm_after)
        self._check("norm_weights", self.norm_weights, norms)
        self._check("norm_biases", self.norm_biases, norms)
        if self.biases:
            self._check("biases", self.biases, len(self.projections))
        if self.orders:
            self._check("orders", self.orders, self.num_blocks)

    def _check_projections(self) -> None:
        up = self.projections[PROJECTIONS.index("up")]
        if up.dim() != 3:
            raise UsageError(f"split_decode: up must be [H, K, G], got {list(up.shape)}")
        heads, width, hidden = up.shape
        shapes = {"up": [heads, width, hidden], "down": [heads, hidden, width]}
        for number, weight in enumerate(self.projections):
            block, place = divmod(number, len(PROJECTIONS))
            shape = shapes.get(PROJECTIONS[place], [heads, width, width])
            if list(weight.shape) != shape:
                raise UsageError(
                    f"split_decode: {PROJECTIONS[place]} of block {block} must be {shape}, got {list(weight.shape)}"
                )

    def _check(self, name: str, tensors: list[Tensor], count: int) -> None:
        if len(tensors) != count:
            raise UsageError(f"split_decode: {name} must be {count} for {self.num_blocks} blocks, got {len(tensors)}")
        for number, tensor in enumerate(tensors):
            is_up = name == "biases" and PROJECTIONS[number % len(PROJECTIONS)] == "up"
            width = self.num_heads * self.projections[PROJECTIONS.index("up")].shape[2] if is_up else self.hidden_size
            if list(tensor.shape) != [width]:
                raise UsageError(f"split_decode: {name}[{number}] must be [{width}], got {list(tensor.shape)}")

    @property
    def num_blocks(self) -> int:
        """`N`."""
        return len(self.projections) // len(PROJECTIONS)

    @property
    def num_heads(self) -> int:
        """`H`."""
        return self.projections[0].shape[0]

    @property
    def head_dim(self) -> int:
        """`K`."""
        return self.projections[0].shape[1]

    @property
    def hidden_size(self) -> int:
        """`D`."""
        return self.num_heads * self.head_dim

    @cached_property
    def numbers(self) -> tuple[Tensor, ...]:
        """Every tensor but the orders."""
        return (*self.projections, *self.biases, *self.norm_weights, *self.norm_biases)
