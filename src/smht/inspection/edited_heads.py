"""Run a model with some of its heads dropped, frozen or swapped. By hooks: its code and weights stay as they are.

LayerNorm couples the chunks of a split model (seed 000, 6.2), so there are two answers to what a head does. With `live`
statistics every mean and variance is that of the edited residual stream, as in a model without the head. With `held`
ones each norm subtracts and divides by what it does in the unedited run on the same tokens, so that only the head
itself goes missing: in a split model without mixing the logits then lose exactly what `head_logits` says that a dropped
chunk contributes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from smht.errors import UsageError, did_you_mean
from smht.inspection.head_edits import Drop, DropLineage, Freeze, HeadEdit, ModelHeads, Place, Swap
from smht.inspection.head_weights import swapped_forward
from smht.inspection.norm_statistics import NORMS, NormStatistics, measure, normalise
from smht.inspection.recording import evaluating
from smht.layers.block import Block
from smht.models import SmhtPreTrainedModel

STATISTICS = ("live", "held")
"""Where the norms' means and variances come from: the edited run, or the unedited one."""

Pieces = list[Tensor]
Site = tuple[str, int, str]
"""Stack, layer and part."""

_edited: WeakKeyDictionary[nn.Module, tuple[HeadEdit, ...]] = WeakKeyDictionary()


@contextmanager
def edited_heads(
    model: SmhtPreTrainedModel,
    edits: Sequence[HeadEdit],
    statistics: str = "live",
    reference: Mapping[str, Any] | None = None,
) -> Iterator[None]:
    """While the context lasts, `model` runs with `edits`; afterwards it is what it was, also after an error.

    All calls take the composed path, so a run without edits differs from one with edits by the edits alone. Generation
    works; with held statistics, which take a second, unedited run a call, only with `use_cache=False`.

    One thread at a time: hooks act on whoever calls the model.

    Args:
        model: any of smht's, in any mode.
        edits: `Drop`, `DropLineage`, `Freeze`, `Swap`; no part of a head in two of them.
        statistics: `live` or `held`.
        reference: what the forward takes, for the run whose values `Freeze` holds; only for that.

    Raises:
        UsageError: edits that do not fit the model (`ModelHeads.check`) or each other, unknown statistics, `Freeze`
            without a reference, or a model whose heads are being edited already. While the context lasts: a text of
            another length than a reference held token by token, or with held statistics a cache.
    """
    if statistics not in STATISTICS:
        raise UsageError(f"statistics = {statistics!r}: {did_you_mean(statistics, STATISTICS)}")
    base = _base(model)
    if base in _edited:
        raise UsageError("this model's heads are being edited already: give all edits at once, one thread at a time")
    heads = ModelHeads(model)
    heads.check(edits)
    frozen = _reference_values(model, heads, edits, reference)
    _edited[base] = tuple(edits)
    with ExitStack() as hooks:
        hooks.callback(_edited.pop, base)
        editor = _Editor(heads, hooks)
        editor.hook_weights(edits)
        editor.hook_outputs(edits, frozen)
        if statistics == "held":
            editor.hook_norms()
        editor.hook_lineages(edits)
        yield


def edits_of(model: SmhtPreTrainedModel) -> tuple[HeadEdit, ...]:
    """What is being done to the model's heads at the moment: none outside of `edited_heads`."""
    return _edited.get(_base(model), ())


def _base(model: Any) -> nn.Module:
    """What a model with a head and the same model without it have in common."""
    return getattr(model, model.base_model_prefix, model)


@dataclass
class _Editor:
    """Places the hooks.

    Attributes:
        heads: of the model.
        hooks: takes them away again.
        is_measuring: whether the unedited run is under way, in which edits do nothing.
        held: of each norm, from the last unedited run.
        memory: the encoder's last output, unedited and edited.
    """

    heads: ModelHeads
    hooks: ExitStack
    is_measuring: bool = False
    held: dict[nn.Module, NormStatistics] = field(default_factory=dict)
    memory: tuple[Tensor, Tensor] | None = None

    def hook_outputs(self, edits: Sequence[HeadEdit], frozen: Mapping[Place, Tensor]) -> None:
        """What heads write. Every place where they do so is hooked, which keeps fused ops away."""
        changes: dict[Site, list[Callable[[Pieces], None]]] = {}
        for edit in edits:
            for site, change in _changes(edit, self.heads.places(edit), frozen):
                changes.setdefault(site, []).append(change)
        for name, blocks in self.heads.blocks.items():
            for layer, block in enumerate(blocks):
                for part in self.heads.parts(name):
                    is_output = self.heads.writes_a_chunk(part)
                    self._hook_site(_writer(block, part), is_output, changes.get((name, layer, part), []))

    def _hook_site(self, projection: nn.Module, is_output: bool, changes: list[Callable[[Pieces], None]]) -> None:
        def edit(x: Tensor) -> Tensor | None:
            if self.is_measuring or not changes:
                return None
            pieces = list(x.chunk(self.heads.count, dim=-1))
            for change in changes:
                change(pieces)
            return torch.cat(pieces, dim=-1)

        if is_output:
            handle = projection.register_forward_hook(lambda *call: edit(call[-1]))
        else:
            handle = projection.register_forward_pre_hook(lambda _, arguments: edit(arguments[0]))
        self.hooks.callback(handle.remove)

    def hook_weights(self, edits: Sequence[HeadEdit]) -> None:
        """Projections of heads that compute with each other's weights."""
        pairs = {}
        for edit in edits:
            if isinstance(edit, Swap) and edit.what == "weights":
                places = self.heads.places(edit)
                half = len(places) // 2
                pairs |= dict(zip(places, places[half:] + places[:half], strict=True))
        for projection, forward in swapped_forward(self.heads.blocks, pairs):

            def replace(module: nn.Module, arguments: Any, output: Tensor, forward: Any = forward) -> Tensor | None:
                return None if self.is_measuring else forward(arguments[0])

            self.hooks.callback(projection.register_forward_hook(replace).remove)

    def hook_lineages(self, edits: Sequence[HeadEdit]) -> None:
        """Where a chunk enters the first block, and where it leaves the last norm."""
        chunks = [edit.head for edit in edits if isinstance(edit, DropLineage)]

        def silence(x: Tensor) -> Tensor:
            pieces = list(x.chunk(self.heads.count, dim=-1))
            for chunk in chunks:
                pieces[chunk] = torch.zeros_like(pieces[chunk])
            return torch.cat(pieces, dim=-1)

        def at_the_start(module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
            return None if self.is_measuring else (silence(arguments[0]), *arguments[1:])

        def at_the_end(module: nn.Module, arguments: Any, output: Tensor) -> Tensor | None:
            return None if self.is_measuring else silence(output)

        for stack in self.heads.stacks.values() if chunks else ():
            last = stack.layers[-1] if stack.norm is None else stack.norm
            self.hooks.callback(stack.layers[0].register_forward_pre_hook(at_the_start).remove)
            self.hooks.callback(last.register_forward_hook(at_the_end).remove)

    def hook_norms(self) -> None:
        """Norms that measure in an unedited run before each call of a stack, and then hold what they measured."""
        for name, stack in self.heads.stacks.items():

            def run_unedited(module: nn.Module, arguments: Any, options: Any, name: str = name) -> None:
                if not self.is_measuring:
                    self._measure(name, module, arguments, options)

            self.hooks.callback(stack.register_forward_pre_hook(run_unedited, with_kwargs=True).remove)
            for module in stack.modules():
                if isinstance(module, NORMS):
                    self.hooks.callback(module.register_forward_hook(self._hold).remove)
        if "encoder" in self.heads.stacks:
            handle = self.heads.stacks["encoder"].register_forward_hook(self._keep_edited_memory)
            self.hooks.callback(handle.remove)

    def _measure(self, name: str, stack: nn.Module, arguments: Any, options: dict[str, Any]) -> None:
        _refuse_cache(options)
        if name == "decoder":
            options = {**options, "memory": self._unedited_memory(options["memory"])}
        self.is_measuring = True
        try:
            with torch.no_grad():
                output = stack(*arguments, **options)
        finally:
            self.is_measuring = False
        if name == "encoder":
            self.memory = (output[0], output[0])

    def _hold(self, norm: Any, arguments: tuple[Tensor], output: Tensor) -> Tensor | None:
        if self.is_measuring:
            self.held[norm] = measure(norm, arguments[0])
            return None
        return normalise(norm, arguments[0], self.held[norm])

    def _keep_edited_memory(self, module: nn.Module, arguments: Any, output: Any) -> None:
        if not self.is_measuring:
            assert self.memory is not None
            self.memory = (self.memory[0], output[0])

    def _unedited_memory(self, given: Tensor) -> Tensor:
        """What the encoder would have given the decoder, without edits."""
        if self.memory is None or not torch.equal(given, self.memory[1]):
            raise UsageError(
                "held statistics are those of a whole unedited run: give the source as input_ids, not what an encoder "
                "made of it before"
            )
        return self.memory[0]


def _writer(block: Block, part: str) -> nn.Module:
    """The projection through which a part's heads write."""
    if part == "feed_forward":
        return block.mlp.down_proj
    attention: Any = block.self_attn if part == "attention" else block.cross_attn
    return attention.o_proj


def _changes(
    edit: HeadEdit, places: Sequence[Place], frozen: Mapping[Place, Tensor]
) -> Iterator[tuple[Site, Callable[[Pieces], None]]]:
    """What an edit does to the heads' pieces at each place where they write."""
    for place in places:
        site = (place.stack, place.layer, place.part)
        if isinstance(edit, Drop | DropLineage):
            yield site, _put(place.head, None)
        elif isinstance(edit, Freeze):
            yield site, _put(place.head, frozen[place])
        elif edit.what == "outputs" and place.head == edit.head:
            yield site, _exchange(edit.head, edit.other)


def _put(head: int, value: Tensor | None) -> Callable[[Pieces], None]:
    def put(pieces: Pieces) -> None:
        piece = pieces[head]
        if value is None:
            pieces[head] = torch.zeros_like(piece)
            return
        if value.dim() > 1 and value.shape != piece.shape:
            raise UsageError(
                f"a head is frozen token by token at a reference of {list(value.shape[:-1])} tokens, and here are "
                f"{list(piece.shape[:-1])}: freeze it at its mean, or give a text as long"
            )
        pieces[head] = value.to(piece).expand_as(piece)

    return put


def _exchange(first: int, second: int) -> Callable[[Pieces], None]:
    def exchange(pieces: Pieces) -> None:
        pieces[first], pieces[second] = pieces[second], pieces[first]

    return exchange


def _refuse_cache(options: Mapping[str, Any]) -> None:
    if options.get("cache") is not None or options.get("past_key_values") is not None:
        raise UsageError("held statistics take the whole text in each call, without a cache: use_cache=False")


def _reference_values(
    model: SmhtPreTrainedModel, heads: ModelHeads, edits: Sequence[HeadEdit], reference: Mapping[str, Any] | None
) -> dict[Place, Tensor]:
    """What frozen heads write in the reference run: `[B, T, K]` token by token, or `[K]` for a mean."""
    wanted = {place: edit for edit in edits if isinstance(edit, Freeze) for place in heads.places(edit)}
    if not wanted:
        return {}
    if reference is None:
        raise UsageError("a frozen head is held at what it writes in a reference run: give its inputs as reference")
    for edit in wanted.values():
        if edit.at not in ("mean", "tokens"):
            raise UsageError(f"freeze at = {edit.at!r}: choose from mean, tokens")
    kept: dict[Site, Tensor] = {}
    with ExitStack() as hooks, torch.no_grad(), evaluating(model):
        for place in wanted:
            site = (place.stack, place.layer, place.part)
            projection = _writer(heads.blocks[place.stack][place.layer], place.part)
            keep = _keeper(kept, site, heads.writes_a_chunk(place.part))
            hooks.callback(projection.register_forward_hook(keep).remove)
        model(**reference)
    return {
        place: _frozen_value(kept[place.stack, place.layer, place.part], place, heads.count, edit.at, reference)
        for place, edit in wanted.items()
    }


def _keeper(kept: dict[Site, Tensor], site: Site, is_output: bool) -> Any:
    def keep(module: nn.Module, arguments: tuple[Tensor], output: Tensor) -> None:
        kept[site] = output if is_output else arguments[0]

    return keep


def _frozen_value(written: Tensor, place: Place, count: int, at: str, reference: Mapping[str, Any]) -> Tensor:
    piece = written.chunk(count, dim=-1)[place.head]
    if at == "tokens":
        return piece
    mask = reference.get("decoder_attention_mask" if place.stack == "decoder" else "attention_mask")
    if mask is None or mask.dim() != 2:
        return piece.mean((0, 1))
    weights = (mask != 0).to(piece)
    return torch.einsum("btk,bt->k", piece, weights) / weights.sum()
