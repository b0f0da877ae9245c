"""Which heads can be switched off on the page, and what that does to a model."""

from collections.abc import Iterable, Sequence

from smht.inspection import Drop, DropLineage
from smht.inspection.edited_heads import STATISTICS
from smht.inspection.head_edits import ModelHeads
from smht.inspection.head_logits import lineage
from smht.models import SmhtPreTrainedModel

LIVE, HELD = STATISTICS


def head_names(model: SmhtPreTrainedModel) -> dict[str, Drop | DropLineage]:
    """Every head by what the page calls it, and where chunks have a lineage those from end to end too."""
    names: dict[str, Drop | DropLineage] = {}
    heads = ModelHeads(model)
    for drop in heads.every_head():
        stack = f"{drop.stack} " if drop.stack else ""
        names[f"{stack}block {drop.layer} head {drop.head}"] = drop
    if lineage(model.config)[0]:
        for head in range(heads.count):
            names[f"chunk {head} from end to end"] = DropLineage(head)
    return names


def edits_of(names: dict[str, Drop | DropLineage], off: Iterable[str]) -> Sequence[Drop | DropLineage]:
    """What to do to a model for these of its heads; a chunk from end to end takes its heads with it."""
    chosen = [names[name] for name in off if name in names]
    chunks = {edit.head for edit in chosen if isinstance(edit, DropLineage)}
    return [edit for edit in chosen if isinstance(edit, DropLineage) or edit.head not in chunks]
