"""What can be done to a head at inference: drop, freeze, swap; and which heads a model has.

A head's **part** is what one sub-layer of one block computes for it:

| part | exists | what the head writes |
|---|---|---|
| `attention` | in every block | see below, self-attention |
| `cross_attention` | in a decoder's block with a memory | see below, attention to the memory |
| `feed_forward` | where the feed-forward is split | chunk `h` of what it adds to the residual stream |

Where the attention's output projection is split, the head writes chunk `h` of what attention adds to the residual
stream, its chunk of a bias included (seed 000, steps 3g and 3k); in a shuffled block, chunk `h` in the block's own
order. Where it is dense, the head writes `A_h` (step 3e), its channels of what `W_O` reads; a bias of `W_O` belongs to
no head. A dense feed-forward has no heads.

An edit takes all parts that its head has unless `parts` names some. Norms, embeddings and biases of relative positions
belong to no head.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from smht.errors import UsageError, did_you_mean
from smht.inspection.lineage import lineage
from smht.layers.block import Block
from smht.models import SmhtPreTrainedModel

PARTS = ("attention", "cross_attention", "feed_forward")
"""The parts of a head in a block, in the order in which they run."""


@dataclass(frozen=True)
class Drop:
    """What the head writes is zero.

    Attributes:
        layer: its block, from 0.
        head: its number, from 0.
        stack: `encoder` or `decoder` where there are two; empty otherwise.
        parts: some of `PARTS`; None for all that the head has.
    """

    layer: int
    head: int
    stack: str = ""
    parts: tuple[str, ...] | None = None


@dataclass(frozen=True)
class DropLineage:
    """Chunk `head` is zero all the way: where it enters block 0, whatever is added to it, and after the last norm.

    The model is then the `H − 1` other narrow ones (seed 000, 6.1); norms over the whole vector still count the zeros.
    Only for models whose chunks have a lineage (`smht.inspection.lineage`); of both stacks where there are
    two.

    Attributes:
        head: the chunk's number, from 0.
    """

    head: int


@dataclass(frozen=True)
class Freeze:
    """What the head writes is what it wrote in a reference run.

    Attributes:
        layer: its block, from 0.
        head: its number, from 0.
        stack: `encoder` or `decoder` where there are two; empty otherwise.
        parts: some of `PARTS`; None for all that the head has.
        at: `mean`, the mean over all tokens of the reference run, the same for every token; or `tokens`, token by
            token, which takes a text of as many tokens.
    """

    layer: int
    head: int
    stack: str = ""
    parts: tuple[str, ...] | None = None
    at: Literal["mean", "tokens"] = "mean"


@dataclass(frozen=True)
class Swap:
    """Two heads change places.

    With `what="outputs"` each writes where the other would: of one block, since a later block's is not there yet. With
    `what="weights"` each computes with the other's matrices and biases, in any two blocks. In a dense block heads that
    change all their weights compute the same sum in another order.

    Attributes:
        layer: the first head's block, from 0.
        head: its number, from 0.
        other: the second head's number.
        other_layer: its block; the same if None.
        stack: `encoder` or `decoder` where there are two; empty otherwise.
        parts: some of `PARTS`; None for all that the heads have.
        what: `outputs` or `weights`.
    """

    layer: int
    head: int
    other: int
    other_layer: int | None = None
    stack: str = ""
    parts: tuple[str, ...] | None = None
    what: Literal["outputs", "weights"] = "outputs"

    @property
    def second_layer(self) -> int:
        """The second head's block."""
        return self.layer if self.other_layer is None else self.other_layer


HeadEdit = Drop | DropLineage | Freeze | Swap


@dataclass(frozen=True)
class Place:
    """A part of one head in one block."""

    stack: str
    layer: int
    part: str
    head: int


class ModelHeads:
    """The heads of a model, and whether edits fit them.

    Args:
        model: any of smht's.

    Attributes:
        blocks: of each stack, by its name: empty where there is one.
        count: `H`.
        stacks: the stacks themselves.
    """

    def __init__(self, model: SmhtPreTrainedModel) -> None:
        base: Any = getattr(model, model.base_model_prefix, model)
        self._config = model.config
        self.stacks: dict[str, Any] = (
            {"": base} if hasattr(base, "layers") else {"encoder": base.encoder, "decoder": base.decoder}
        )
        self.blocks: dict[str, list[Block]] = {name: list(stack.layers) for name, stack in self.stacks.items()}
        self.count: int = model.config.num_attention_heads

    def parts(self, stack: str) -> tuple[str, ...]:
        """What parts a head has in that stack's blocks."""
        has = {
            "attention": True,
            "cross_attention": self.blocks[stack][0].cross_attn is not None,
            "feed_forward": "feed_forward" in self._config.split,
        }
        return tuple(part for part in PARTS if has[part])

    def writes_a_chunk(self, part: str) -> bool:
        """Whether heads write chunks of what a part adds, rather than what a dense matrix reads."""
        return part == "feed_forward" or "output" in self._config.split

    def describe_parts(self, parts: tuple[str, ...] | None = None) -> str:
        """Those of `parts` that the heads have, or all that they have, such as `attention, feed-forward`."""
        named = {stack: part_names(own) for stack, own in self._parts_by_stack(parts).items()}
        if list(named) == [""]:
            return named[""]
        return "; ".join(f"{stack} {names}" for stack, names in named.items())

    def every_head(self, parts: tuple[str, ...] | None = None) -> list[Drop]:
        """Each head of each block dropped alone, stack by stack.

        Args:
            parts: what of it; heads without any of them are left out.

        Raises:
            UsageError: no head has such a part.
        """
        return [
            Drop(layer, head, stack, None if parts is None else own)
            for stack, own in self._parts_by_stack(parts).items()
            for layer in range(len(self.blocks[stack]))
            for head in range(self.count)
        ]

    def _parts_by_stack(self, parts: tuple[str, ...] | None) -> dict[str, tuple[str, ...]]:
        for part in parts or ():
            if not any(part in self.parts(stack) for stack in self.blocks):
                self._check_parts(next(iter(self.blocks)), (part,))
        own = {
            stack: tuple(part for part in self.parts(stack) if parts is None or part in parts) for stack in self.blocks
        }
        return {stack: names for stack, names in own.items() if names}

    def check(self, edits: Sequence[HeadEdit]) -> None:
        """Refuse what does not fit.

        Raises:
            UsageError: a stack, layer, head or part that is not there, outputs swapped between blocks, a head swapped
                with itself, a chunk without lineage, or a part of a head in two edits.
        """
        taken: set[Place] = set()
        for edit in edits:
            if isinstance(edit, Swap):
                _check_swap(edit)
            for place in self.places(edit):
                if place in taken:
                    where = f"{place.stack} layer {place.layer} head {place.head}".strip()
                    raise UsageError(f"{where} is edited twice ({place.part}): name each head in one edit")
                taken.add(place)

    def places(self, edit: HeadEdit) -> list[Place]:
        """Everything that an edit takes.

        Raises:
            UsageError: something of it is not there.
        """
        if isinstance(edit, DropLineage):
            self._check_lineage(edit.head)
            return [
                Place(stack, layer, part, edit.head)
                for stack, blocks in self.blocks.items()
                for layer in range(len(blocks))
                for part in self.parts(stack)
            ]
        heads = [(edit.layer, edit.head)]
        if isinstance(edit, Swap):
            heads.append((edit.second_layer, edit.other))
        parts = self._check_parts(edit.stack, edit.parts)
        for layer, head in heads:
            _check_number("layer", layer, len(self.blocks[edit.stack]))
            _check_number("head", head, self.count)
        return [Place(edit.stack, layer, part, head) for layer, head in heads for part in parts]

    def describe(self, edit: HeadEdit) -> str:
        """An edit in words, such as `drop layer 1 head 2 (attention)`; without parts where it takes all."""
        if isinstance(edit, DropLineage):
            return f"drop chunk {edit.head} from embedding to last hidden state"
        parts = "" if edit.parts is None else f" ({part_names(self._check_parts(edit.stack, edit.parts))})"
        where = f"{edit.stack} layer {edit.layer} head {edit.head}".strip()
        if isinstance(edit, Drop):
            return f"drop {where}{parts}"
        if isinstance(edit, Freeze):
            return f"freeze {where} at {'its mean' if edit.at == 'mean' else 'the reference, token by token'}{parts}"
        other = f"head {edit.other}" if edit.other_layer is None else f"layer {edit.other_layer} head {edit.other}"
        return f"swap {edit.what} of {where} and {other}{parts}"

    def _check_lineage(self, head: int) -> None:
        _check_number("head", head, self.count)
        has_lineage, note = lineage(self._config)
        if not has_lineage:
            raise UsageError(f"there is no lineage to drop: {note}; drop heads of layers instead")

    def _check_parts(self, stack: str, parts: tuple[str, ...] | None) -> tuple[str, ...]:
        if stack not in self.blocks:
            names = " or ".join(map(repr, self.blocks))
            if len(self.blocks) == 1:
                raise UsageError(f"there is no stack {stack!r}: this model has one, whose heads are named without it")
            raise UsageError(
                f"this model has two stacks: name {names} with a head (in commands: encoder.0.1), not {stack!r}"
            )
        there = self.parts(stack)
        if parts is None:
            return there
        if not parts:
            raise UsageError(f"no part of the head was named: choose from {', '.join(there)}")
        for part in parts:
            if part not in PARTS:
                raise UsageError(f"a head has no part {part!r}: {did_you_mean(part, PARTS)}")
            if part not in there:
                why = "it is dense" if part == "feed_forward" else "there is no memory"
                raise UsageError(f"the heads have no {part} here, since {why}: choose from {', '.join(there)}")
        return tuple(part for part in PARTS if part in parts)


def part_names(parts: Sequence[str]) -> str:
    """Parts in words, such as `attention, feed-forward`."""
    return ", ".join(parts).replace("_", "-")


def _check_number(name: str, number: int, size: int) -> None:
    if type(number) is not int or not 0 <= number < size:
        raise UsageError(f"there is no {name} {number}: they are 0 to {size - 1}")


def _check_swap(edit: Swap) -> None:
    if edit.what not in ("outputs", "weights"):
        raise UsageError(f"swap what = {edit.what!r}: choose from outputs, weights")
    if (edit.layer, edit.head) == (edit.second_layer, edit.other):
        raise UsageError(f"layer {edit.layer} head {edit.head} is swapped with itself: name another")
    if edit.what == "outputs" and edit.layer != edit.second_layer:
        raise UsageError(
            f"outputs of layers {edit.layer} and {edit.second_layer} cannot change places, since the later one is not "
            "computed yet: swap weights, or heads of one layer"
        )
