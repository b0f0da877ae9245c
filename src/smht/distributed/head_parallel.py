"""Head parallelism: a split language model cut by head over several ranks.

Between two LayerNorms everything in a split block belongs to one head, so a rank with `H/P` heads and their channels of
the residual stream and of the embedding is a smaller model of the same kind. What concerns all channels crosses
between ranks:

| what | crosses |
|---|---|
| LayerNorm over the whole vector | two numbers a token, forward and backward (`norm.py`) |
| LayerNorm over each head's chunk | nothing; with shuffle mixing the channels, as below |
| shuffle mixing | the channels that change hands (`shuffle.py`) |
| language-model head and loss | channels or partial logits, once (`vocabulary.py`) |
| clipping | one number a step |

AdamW is local: each rank has moments for its own parameters alone.
"""

import copy
from os import PathLike
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smht.distributed.cuts import assemble, join_all, load_cut
from smht.distributed.norm import RankLayerNorm
from smht.distributed.ranks import Ranks
from smht.distributed.shuffle import RankShuffle
from smht.distributed.vocabulary import make_head, part_of_logits, vocabulary_cross_entropy
from smht.errors import UsageError
from smht.layers import HeadLayerNorm
from smht.layers.block import SPLITTABLE
from smht.layers.position import SinusoidalPositions
from smht.models import SmhtConfig, SmhtForCausalLM
from smht.models.labels import IGNORED, check_labels


class HeadParallelCausalLM(SmhtForCausalLM):
    """One rank's part of a `SmhtForCausalLM`: its heads, with their channels of everything; made by `head_parallel`.

    Takes the same arguments, the same on every rank, and gives the same loss and logits on every rank; hidden states
    are of this rank's channels. Every rank has to call it, and `generate`, `save_pretrained`, `whole_state` too.

    Args:
        whole: the configuration of the whole model.
        ranks: who has the rest.
    """

    def __init__(self, whole: SmhtConfig, ranks: Ranks) -> None:
        super().__init__(part_of_configuration(whole, ranks.size))
        self.whole_config, self.ranks = whole, ranks
        stack: Any = self.model
        for number, block in enumerate(stack.layers):
            _replace_norms(block, ranks)
            if whole.mixing == "shuffle" and number:
                _set_shuffle(block, RankShuffle(whole.hidden_size, whole.num_attention_heads, number, ranks))
        _replace_norms(stack, ranks)
        if isinstance(stack.embed_positions, SinusoidalPositions):
            stack.embed_positions = RankSinusoidalPositions(whole, ranks)
            stack.whole_width = whole.hidden_size
        self.lm_head = make_head(whole.vocab_size, whole.hidden_size, whole.tie_word_embeddings, ranks)
        if whole.tie_word_embeddings:
            self.lm_head.weight = stack.embed_tokens.weight

    def whole_state(self) -> dict[str, Tensor]:
        """The whole model's parameters by name on rank 0, nothing on the others."""
        return join_all(self, self.ranks)

    def whole_model(self) -> SmhtForCausalLM | None:
        """The whole model on rank 0, None on the others."""
        state = self.whole_state()
        return assemble(SmhtForCausalLM, self.whole_config, state) if state else None

    def save_pretrained(self, save_directory: str | PathLike[str], *args: Any, **kwargs: Any) -> None:
        """The whole model, written by rank 0: it loads in one process, or is cut again for any number of ranks."""
        whole = self.whole_model()
        if whole is not None:
            whole.save_pretrained(Path(save_directory), *args, **kwargs)

    def _score(
        self, hidden_states: Tensor, labels: Tensor | None, skip_logits: bool, **kwargs: Any
    ) -> tuple[Tensor | None, Tensor | None]:
        vocab_size, is_tied = self.whole_config.vocab_size, self.whole_config.tie_word_embeddings
        head: Any = self.lm_head
        part = part_of_logits(hidden_states.flatten(0, -2), head, vocab_size, is_tied, self.ranks)
        logits = loss = None
        if labels is not None:
            loss = self._loss(part, labels, **kwargs)
        if labels is None or not skip_logits:
            logits = self.ranks.join_copies(part)[:, :vocab_size].unflatten(0, hidden_states.shape[:-1])
        return logits, loss

    def _loss(
        self,
        part: Tensor,
        labels: Tensor,
        num_items_in_batch: Tensor | int | None = None,
        ignore_index: int = IGNORED,
        shift_labels: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        check_labels(labels[..., 1:] if shift_labels is None else shift_labels, "comes first")
        if shift_labels is None:
            shift_labels = F.pad(labels, (0, 1), value=ignore_index)[..., 1:]
        flat = shift_labels.reshape(-1).to(part.device)
        total = vocabulary_cross_entropy(part, flat, ignore_index, self.ranks)
        divisor: Any = (flat != ignore_index).sum() if num_items_in_batch is None else num_items_in_batch
        return total.float() / (divisor.to(total.device) if torch.is_tensor(divisor) else divisor)


class RankSinusoidalPositions(SinusoidalPositions):
    """This rank's channels of the waves.

    Args:
        whole: the configuration of the whole model.
        ranks: who has the other channels.
    """

    def __init__(self, whole: SmhtConfig, ranks: Ranks) -> None:
        super().__init__(whole.max_position_embeddings, whole.hidden_size)
        self.part = ranks.part(whole.hidden_size)

    def embed(self, positions: Tensor) -> Tensor:
        """`[B, T]` to `[B, T, D/P]`."""
        return super().embed(positions)[..., self.part]


def head_parallel(model: SmhtForCausalLM, ranks: Ranks | None = None) -> HeadParallelCausalLM:
    """This rank's part of a model that every rank has as a whole.

    Args:
        model: the whole model, the same on every rank.
        ranks: who shares it; every process if not given.

    Raises:
        UsageError: `P` does not divide `H`, a projection is dense, or another kind of model.
    """
    ranks = ranks or Ranks()
    if not isinstance(model, SmhtForCausalLM) or isinstance(model, HeadParallelCausalLM):
        raise UsageError(f"head parallelism is for a whole SmhtForCausalLM, not {type(model).__name__}")
    refuse_indivisible(model.config, ranks.size)
    with torch.random.fork_rng(devices=[]):
        part = HeadParallelCausalLM(model.config, ranks)
    parameter = model.lm_head.weight
    nn.Module.to(part, device=parameter.device, dtype=parameter.dtype)
    load_cut(part, dict(model.named_parameters(remove_duplicate=False)), ranks)
    return part.train(model.training)


def refuse_indivisible(config: SmhtConfig, ranks: int) -> None:
    """Refuse a model that cannot be cut by head into `ranks` parts.

    Raises:
        UsageError: `P` does not divide `H`, or a projection is dense.
    """
    heads = config.num_attention_heads
    if config.stack != "decoder":
        raise UsageError(f"head parallelism is for language models, and this is stack = {config.stack!r}")
    if heads % ranks:
        fits = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
        raise UsageError(
            f"head parallelism gives each of {ranks} ranks as many heads, and num_attention_heads = {heads}: "
            f"take {fits} ranks, or another number of heads"
        )
    dense = [name for name in SPLITTABLE if name not in config.split]
    if dense:
        raise UsageError(
            f"head parallelism needs every projection split, and {', '.join(dense)} "
            f"{'is' if len(dense) == 1 else 'are'} dense: train such a model data-parallel"
        )


def part_of_configuration(whole: SmhtConfig, ranks: int) -> SmhtConfig:
    """The configuration of the smaller model that one of `ranks` ranks has."""
    assert whole.intermediate_size is not None
    part = copy.deepcopy(whole)
    part.hidden_size = whole.hidden_size // ranks
    part.num_attention_heads = whole.num_attention_heads // ranks
    part.intermediate_size = whole.intermediate_size // ranks
    # A rank's shuffle goes through the others and is put in place of the model's own.
    part.mixing = "none"
    return part


def clip_grad_norm(part: nn.Module, max_norm: float, ranks: Ranks) -> Tensor:
    """`torch.nn.utils.clip_grad_norm_` over all ranks' gradients; the norm of them all, the same on every rank.

    Args:
        part: this rank's model.
        max_norm: what the norm is at most afterwards.
        ranks: who has the rest; every one has to call it.
    """
    norm = total_grad_norm(part, ranks)
    nn.utils.clip_grads_with_norm_(part.parameters(), max_norm, norm)
    return norm


def total_grad_norm(part: nn.Module, ranks: Ranks) -> Tensor:
    """The norm of all ranks' gradients, a number; every rank has to call it."""
    gradients = [parameter.grad for parameter in part.parameters() if parameter.grad is not None]
    squared = nn.utils.get_total_norm(gradients).square()
    ranks.start_sum(squared).wait()
    return squared.sqrt()


def _replace_norms(module: nn.Module, ranks: Ranks) -> None:
    for name, child in module.named_children():
        if type(child) is nn.LayerNorm:
            setattr(module, name, RankLayerNorm(child.normalized_shape[0], child.eps, ranks))


def _set_shuffle(block: Any, shuffle: RankShuffle) -> None:
    block.self_attn.input_shuffle = block.self_attn.output_shuffle = block.mlp.shuffle = shuffle
    for child in block.children():
        if isinstance(child, HeadLayerNorm):
            child.shuffle = shuffle  # pyright: ignore[reportAttributeAccessIssue]
