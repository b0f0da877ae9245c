"""Who attends to whom: one map for each head, and any of them enlarged."""

from collections.abc import Sequence
from typing import Any

from smht.errors import UsageError
from smht.explorer.bars import Bar, bar_table
from smht.explorer.colours import WEIGHTS
from smht.explorer.heat_maps import Axis, heat_map, number, thumbnail
from smht.explorer.markup import details, heading_cells, paragraph, table
from smht.explorer.reading import Reading
from smht.explorer.section import LAST, Choice, Section, kept, places, resolve
from smht.inspection import Step
from smht.inspection.attention_maps import head_statistics

_WINDOW = 64
_SHOWN_KEYS = 10


class Attention(Section):
    """Attention weights of every head."""

    name = "attention"
    heading = "Attention"
    lead = (
        "A row is a token that looks, a column one that is looked at; each row sums to 1. Colours are relative to each "
        "row's largest."
    )

    def choices(self, readings: Sequence[Reading], values: Sequence[Any]) -> list[Choice]:
        """Which block, which head, which part of the text, and one token that looks."""
        deepest = max(readings, key=lambda reading: len(_attentions(reading)))
        blocks = tuple((name, name) for name in _attentions(deepest))
        heads = max(reading.subject.model.config.num_attention_heads for reading in readings)
        block = values[0] if values and values[0] in dict(blocks) else blocks[0][1]
        longest = max(readings, key=lambda reading: len(_queries(reading, block)))
        queries = _queries(longest, block)
        count = len(queries)
        parts = [("whole text", 0)]
        if count > _WINDOW:
            parts += [(f"tokens {i} to {min(i + _WINDOW, count) - 1}", i + _WINDOW) for i in range(0, count, _WINDOW)]
        offered = [
            Choice("Block", blocks, blocks[0][1], walks=len(blocks) > 1),
            Choice("Head", tuple((str(head), head) for head in range(heads)), 0, walks=heads > 1),
            Choice("Rows", tuple(parts), 0),
            Choice("Token that looks", places(queries), LAST),
        ]
        return kept(offered, values)

    def show(self, reading: Reading, values: Sequence[Any]) -> str:
        """All heads of the block small, the chosen one large, and what one token looks at."""
        block, head, part, place = values
        step = _attentions(reading).get(block)
        if step is None:
            raise UsageError(f"this model has no attention in {block}: choose from {', '.join(_attentions(reading))}")
        weights = step.value[0]
        if head >= len(weights):
            raise UsageError(f"this model has no head {head}: they are 0 to {len(weights) - 1}")
        queries, keys = _queries(reading, block), _keys(reading, step)
        rows = slice(part - _WINDOW, part) if part else slice(None)
        shown = weights[head, rows]
        if not len(shown):
            raise UsageError(f"this text has {len(queries)} tokens and no row {part - _WINDOW}")
        large = heat_map(
            shown, Axis("looking", queries[rows]), Axis("looked at", keys), f"Weights in {block}, head {head}", WEIGHTS
        )
        return (
            _thumbnails(step)
            + large
            + _seen_from(weights[head], resolve(place, len(queries)), queries, keys)
            + _numbers(step)
        )

    def show_all(self, readings: Sequence[Reading], reading: Reading) -> str:
        """Every head of every block small, the heads of the first and last block large."""
        parts, steps = [], _attentions(reading)
        large = [block for block in steps if block in (next(iter(steps)), next(reversed(steps)))]
        for block, step in steps.items():
            queries, keys = Axis("looking", _queries(reading, block)), Axis("looked at", _keys(reading, step))
            parts.append(paragraph(block[:1].upper() + block[1:]) + _thumbnails(step))
            if block in large:
                maps = [
                    heat_map(weights, queries, keys, f"Weights in {block}, head {head}", WEIGHTS)
                    for head, weights in enumerate(step.value[0])
                ]
                parts.append(details(f"Heads of {block} one by one", "".join(maps)))
        return "".join(parts)


def _attentions(reading: Reading) -> dict[str, Step]:
    """The steps with attention weights, by what the page calls the place."""
    named = {}
    for step in reading.trace.steps:
        if step.is_attention:
            across = ", to what was read" if step.is_to_memory else ""
            named[f"{step.stack + ' ' if step.stack else ''}block {step.layer}{across}"] = step
    return named


def _queries(reading: Reading, block: str) -> list[str]:
    return reading.source if block.startswith("encoder") else reading.tokens


def _keys(reading: Reading, step: Step) -> list[str]:
    return reading.source if step.is_to_memory or step.stack == "encoder" else reading.tokens


def _thumbnails(step: Step) -> str:
    maps = (thumbnail(weights, f"head {head}", WEIGHTS) for head, weights in enumerate(step.value[0]))
    return f'<div class="thumbnails">{"".join(maps)}</div>'


def _seen_from(weights: Any, place: int, queries: list[str], keys: list[str]) -> str:
    best = weights[place].topk(min(_SHOWN_KEYS, len(keys)))
    bars = [
        Bar(f"{key}: {keys[key]}", weight, (number(weight),))
        for weight, key in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        if weight > 0
    ]
    return bar_table(f"What token {place}, “{queries[place]}”, looks at", ("token", "weight"), bars)


def _numbers(step: Step) -> str:
    """The heads' statistics; attention to another text has none."""
    weights = step.value
    if weights.shape[-1] != weights.shape[-2]:
        return ""
    rows = [
        f'<th scope="row">{one.head}</th>'
        + "".join(f"<td>{value:.3f}</td>" for value in (one.entropy, one.distance, one.previous, one.first))
        for one in head_statistics(weights)
    ]
    head = heading_cells(("head", "entropy, bits", "distance, tokens", "on the token before", "on the first"))
    return details("The heads of this block in numbers", table("Means over the tokens that look", [head], rows))
