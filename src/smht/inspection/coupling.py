"""How much each chunk of the embeddings moves each chunk of the last hidden state (seed 000, 6.1 and 6.2).

In a split model without mixing only LayerNorm couples chunks: `y = (x − μ) / √(σ² + ε) · γ + β`, where `μ` and `σ²` are
taken over all channels. Its derivative is

`∂y_j / ∂x_i = γ_j / √(σ² + ε) · (δ_ij − 1/D − ŷ_j · ŷ_i / D)` with `ŷ = (x − μ) / √(σ² + ε)`,

of which `1/D` comes from the mean and `ŷ_j · ŷ_i / D` from the variance. With both held constant only `δ_ij` is left,
so the Jacobian between different chunks is exactly 0.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from smht.errors import UsageError
from smht.inspection.display import Displayed, Table, matrix_rows
from smht.inspection.lineage import lineage
from smht.inspection.norm_statistics import NORMS, measure, normalise
from smht.inspection.recording import evaluating
from smht.layers import HeadLayerNorm
from smht.models import SmhtPreTrainedModel


@dataclass(frozen=True, repr=False)
class Coupling(Displayed):
    """Norms of Jacobians between chunks.

    Attributes:
        live: `[H, H]`; row `i`, column `j`: the Frobenius norm of the Jacobian from chunk `i` of all tokens' embeddings
            to chunk `j` of one token's last hidden state, with the norms' statistics as they are.
        held: the same with every mean and variance held constant.
        note: whether chunks have a lineage, without which `held` is not zero between them.
    """

    live: Tensor
    held: Tensor
    note: str

    def tables(self) -> list[Table]:
        """Both matrices; row `i`, column `j` is what chunk `i` of the embeddings does to chunk `j`."""
        headers = ("from chunk", *(f"to {chunk}" for chunk in range(len(self.live))))
        return [
            Table(headers, matrix_rows(matrix), f"norm of the Jacobian, the norms' statistics {name}", self.note)
            for name, matrix in (("live", self.live), ("held", self.held))
        ]


def coupling(model: SmhtPreTrainedModel, input_ids: Tensor, position: int = -1) -> Coupling:
    """Measure the coupling of chunks in one text.

    Args:
        model: with one stack; put into evaluation mode for the time.
        input_ids: `[1, T]`.
        position: of the token whose last hidden state counts.

    Raises:
        UsageError: a model with two stacks, more than one text, or a position outside it.
    """
    if model.config.is_encoder_decoder:
        raise UsageError("coupling is measured in models of one stack; pass the encoder or decoder by itself")
    if input_ids.dim() != 2 or input_ids.shape[0] != 1:
        raise UsageError(f"coupling takes one text, input_ids [1, T]; got shape {list(input_ids.shape)}")
    if not -input_ids.shape[1] <= position < input_ids.shape[1]:
        raise UsageError(f"there is no position {position} in a text of {input_ids.shape[1]} tokens")
    base: Any = getattr(model, model.base_model_prefix, model)
    with evaluating(model):
        live = _norms(base, input_ids, position)
        with held_statistics(base):
            held = _norms(base, input_ids, position)
    return Coupling(live, held, lineage(model.config)[1])


@contextmanager
def held_statistics(model: nn.Module) -> Iterator[None]:
    """Let no gradient through means and variances of LayerNorms while the context lasts; values stay as they are."""
    with ExitStack() as stack:
        for module in model.modules():
            if isinstance(module, NORMS):
                handle = module.register_forward_hook(_held_norm)
                stack.callback(handle.remove)
        yield


def _held_norm(module: nn.LayerNorm | HeadLayerNorm, arguments: tuple[Tensor], output: Tensor) -> Tensor:
    return normalise(module, arguments[0], measure(module, arguments[0]))


def _norms(base: Any, input_ids: Tensor, position: int) -> Tensor:
    heads = base.config.num_attention_heads
    embedded = base.get_input_embeddings()(input_ids).detach().requires_grad_()
    hidden = base(inputs_embeds=embedded, use_cache=False).last_hidden_state[0, position]
    squares = torch.zeros(heads, heads, dtype=torch.float64)
    width = hidden.shape[0] // heads
    for channel in range(hidden.shape[0]):
        (gradient,) = torch.autograd.grad(hidden[channel], embedded, retain_graph=True)
        by_chunk = gradient[0].unflatten(-1, (heads, -1)).double().square().sum((0, 2))
        squares[:, channel // width] += by_chunk.cpu()
    return squares.sqrt()
