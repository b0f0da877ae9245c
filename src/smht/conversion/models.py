"""Models made of models: the split one of a dense one by a cut, and the dense one of a split one, exactly."""

import copy

import torch

from smht.conversion import permutation
from smht.conversion.assignment import Deal, Problem
from smht.conversion.projections import copy_weights
from smht.errors import UsageError
from smht.models import SmhtConfig, SmhtPreTrainedModel, dense_twin


def split_config(config: SmhtConfig, heads: int | None, split: tuple[str, ...], mixing: str) -> SmhtConfig:
    """The configuration of the split model that a dense one becomes.

    Args:
        config: the dense model's.
        heads: its number of heads, which is that of blocks too; may be left out.
        split: which projections become block-diagonal.
        mixing: `none` or `shuffle`.

    Raises:
        UsageError: the model is split already, has one head, or the result is no model.
    """
    if config.split:
        raise UsageError(f"the model is split already ({', '.join(config.split)}): `smht dense` makes it dense")
    if not split:
        raise UsageError("split names no projection, so there is nothing to do: name one of qkv, output, feed_forward")
    own = config.num_attention_heads
    if heads is not None and heads != own:
        otherwise = f", or train a dense model with {heads} heads first" if heads > 1 else ""
        raise UsageError(
            f"heads = {heads}, and the model attends with {own}: a block is a head of attention, so another number "
            f"would change what attention computes; give {own}{otherwise}"
        )
    if own == 1:
        raise UsageError("the model has one head, and one block is a full matrix: train one with more heads first")
    if mixing == "shuffle" and config.norm_scope == "head":
        raise UsageError(
            "norm_scope = 'head' goes by the chunks of mixing = 'none': shuffle would change what it computes"
        )
    return _changed(config, split=split, mixing=mixing)


def pose(model: SmhtPreTrainedModel, target: SmhtConfig) -> Problem:
    """What dealing channels anew could gain; see `permutation.pose`."""
    return permutation.pose(model, target)


def permuted(model: SmhtPreTrainedModel, deal: Deal) -> SmhtPreTrainedModel:
    """A copy with its channels and heads dealt anew, which computes the same."""
    other = copy.deepcopy(model)
    permutation.apply(deal, other)
    return other


def cut(model: SmhtPreTrainedModel, target: SmhtConfig) -> SmhtPreTrainedModel:
    """The split model with the weights of a dense one that lie in its blocks; the others are left out."""
    return _copied(model, target)


def to_dense(model: SmhtPreTrainedModel) -> SmhtPreTrainedModel:
    """The dense model that computes what a split one does: blocks on the diagonal, zeros elsewhere.

    Shuffled blocks have their weights where the residual order has their channels.

    Raises:
        UsageError: the model is dense already, or has a LayerNorm a head over shuffled chunks, as no dense model has.
    """
    config = model.config
    if not config.split:
        raise UsageError("the model is dense already: no projection is split")
    if config.mixing == "shuffle" and config.norm_scope == "head":
        raise UsageError(
            "the model has a LayerNorm a head over shuffled channels (norm_scope = 'head' with mixing = 'shuffle'), "
            "and no dense model has those: there is none that computes the same"
        )
    return _copied(model, _changed(dense_twin(config)))


def _copied(model: SmhtPreTrainedModel, config: SmhtConfig) -> SmhtPreTrainedModel:
    with torch.random.fork_rng(devices=[]):  # fresh weights, all replaced, cost no random numbers
        other = type(model)(config)
    other = other.to(device=model.device, dtype=model.dtype)  # pyright: ignore[reportCallIssue]
    copy_weights(model, other)
    return other.train(model.training)


def _changed(config: SmhtConfig, **changes: object) -> SmhtConfig:
    """Without what the configuration was read from, such as a version of transformers or a folder's name."""
    fields = {**config.to_diff_dict(), **changes}
    for name in ("transformers_version", "_name_or_path", "auto_map", "architectures", "dtype"):
        fields.pop(name, None)
    return SmhtConfig(**fields)
