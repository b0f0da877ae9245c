"""What can be done to heads on the page, by the names that they have there, and what that is for a model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from smht.errors import UsageError
from smht.inspection import Drop, DropLineage, Freeze, Swap
from smht.inspection.edited_heads import STATISTICS
from smht.inspection.head_edits import HeadEdit, ModelHeads
from smht.inspection.lineage import lineage
from smht.models import SmhtPreTrainedModel

LIVE, HELD = STATISTICS

Names = Mapping[str, Drop | DropLineage]


@dataclass(frozen=True)
class HeadChanges:
    """What is chosen to be done to heads. Names that a model lacks do nothing to it.

    Attributes:
        off: heads, or chunks from end to end, that write nothing.
        frozen: heads that write the mean of what they write to the same text in the unedited model.
        swapped: heads that change places two by two: the first with the second, the third with the fourth.
        what: of the swapped heads: `outputs` or `weights`, see `smht.inspection.Swap`.
        statistics: of the norms: `live` or `held`, see `smht.inspection.edited_heads`.
    """

    off: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    swapped: tuple[str, ...] = ()
    what: Literal["outputs", "weights"] = "outputs"
    statistics: str = LIVE

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The heads that change places."""
        return list(zip(self.swapped[::2], self.swapped[1::2], strict=False))

    @property
    def waiting(self) -> str | None:
        """A head to change places that no second one has been named for."""
        return self.swapped[-1] if len(self.swapped) % 2 else None

    def edits(self, names: Names) -> tuple[HeadEdit, ...]:
        """What that is for a model.

        A chunk from end to end takes its heads with it. Whether the edits fit each other is `edited_heads`'s to say.

        Args:
            names: of the model's heads, see `head_names`; their order is that of the edits.

        Raises:
            UsageError: two heads of different stacks are to change places.
        """
        off = [drop for name, drop in names.items() if name in self.off]
        chunks = {drop.head for drop in off if isinstance(drop, DropLineage)}
        edits: list[HeadEdit] = [drop for drop in off if isinstance(drop, DropLineage) or drop.head not in chunks]
        edits += [Freeze(*place) for name, place in _places(names).items() if name in self.frozen]
        return (*edits, *self._swaps(_places(names)))

    def _swaps(self, places: Mapping[str, tuple[int, int, str]]) -> list[Swap]:
        swaps = []
        for first, second in self.pairs:
            if first not in places or second not in places:
                continue
            (layer, head, stack), (other_layer, other, other_stack) = places[first], places[second]
            if stack != other_stack:
                raise UsageError(f"{first} and {second} are of two stacks, which do not fit each other: swap others")
            elsewhere = None if other_layer == layer else other_layer
            swaps.append(Swap(layer, head, other, elsewhere, stack, what=self.what))
        return swaps


NO_CHANGES = HeadChanges()


def head_names(model: SmhtPreTrainedModel) -> dict[str, Drop | DropLineage]:
    """Every head by what the page calls it, and where chunks have a lineage those from end to end too.

    Returns:
        what takes the head away, by its name.
    """
    names: dict[str, Drop | DropLineage] = {}
    heads = ModelHeads(model)
    for drop in heads.every_head():
        stack = f"{drop.stack} " if drop.stack else ""
        names[f"{stack}block {drop.layer} head {drop.head}"] = drop
    if lineage(model.config)[0]:
        for head in range(heads.count):
            names[f"chunk {head} from end to end"] = DropLineage(head)
    return names


def _places(names: Names) -> dict[str, tuple[int, int, str]]:
    """Layer, head and stack of those that are heads of one block."""
    return {name: (drop.layer, drop.head, drop.stack) for name, drop in names.items() if isinstance(drop, Drop)}
