"""One step of a trace as a figure."""

from torch import Tensor

from smht.explorer.colours import WEIGHTS
from smht.explorer.heat_maps import Axis, heat_map
from smht.explorer.markup import heading_cells, paragraph, table
from smht.explorer.reading import Reading
from smht.inspection import Step

_MOST_OUTCOMES = 24


def step_title(step: Step) -> str:
    """Number, name and where: `3d attention weights, block 0`."""
    return ", ".join(filter(None, (f"{step.number} {step.name}", step.place)))


def step_figure(reading: Reading, step: Step, head: int | None = None) -> str:
    """Formula, shape, note and values.

    Args:
        reading: what the step is of.
        step: one of its trace's.
        head: for attention weights, whose; the first's if not given.
    """
    shape = ", ".join(map(str, step.shape))
    note = f" ({step.note})" if step.note else ""
    return paragraph(f"{step.formula} → ({shape}){note}", "formula") + _values(reading, step, head or 0)


def _values(reading: Reading, step: Step, head: int) -> str:
    value, title = step.value[0] if step.value.shape[0] == 1 else step.value, step_title(step)
    tokens = _rows(reading, step)
    if step.is_attention:
        keys = Axis("looked at", reading.source if step.is_to_memory else tokens.names)
        drawn = heat_map(value[head], Axis("looking", tokens.names), keys, f"{title}, head {head}", WEIGHTS)
        return drawn + paragraph(f"Head {head} of {len(value)}: the others are under Attention.", "fine")
    if step.number in ("5", "6"):
        return _scores(reading, step, tokens, value, title)
    if value.dim() == 1:
        ids = "".join(f"<td>{index}</td>" for index in value.tolist())
        return table(title, [heading_cells(("token", *tokens.names))], [f'<th scope="row">id</th>{ids}'])
    width = value.shape[-1] if value.dim() == 3 else _chunk(reading, value)
    return heat_map(value.flatten(1), tokens, Axis("head" if width else "channel", group=width), title)


def _rows(reading: Reading, step: Step) -> Axis:
    is_of_memory = step.number == "3h.3" and step.name.startswith(("key", "value"))
    return Axis("token", reading.source if step.stack == "encoder" or is_of_memory else reading.tokens)


def _chunk(reading: Reading, value: Tensor) -> int:
    """How many channels of a vector are one head's; 0 where they are not dealt to heads."""
    heads = reading.subject.model.config.num_attention_heads
    is_stream = value.shape[-1] == reading.subject.model.config.hidden_size
    return value.shape[-1] // heads if is_stream else 0


def _scores(reading: Reading, step: Step, tokens: Axis, value: Tensor, title: str) -> str:
    """The likeliest outcomes of the last row, in that order, for every row."""
    value = value.reshape(-1, value.shape[-1])
    best = value[-1].topk(min(_MOST_OUTCOMES, value.shape[-1])).indices
    names = [reading.subject.outcomes[index] for index in best.tolist()]
    rows = Axis("text", ["text"]) if reading.subject.labels_texts else tokens
    of_all = f" of {value.shape[-1]:,}" if len(best) < value.shape[-1] else ""
    shown = f"{title}: the {len(best)} likeliest{of_all} after the last token"
    return heat_map(value[:, best], rows, Axis("outcome", names), title if rows is not tokens else shown)
