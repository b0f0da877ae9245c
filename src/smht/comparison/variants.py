"""Variants: what each of the models compared does otherwise than the base architecture, written in words.

A name is words joined by `+`, the first of them `split` or `dense`: `split+shuffle+rotary`, `dense+H=8`. What a name
leaves open (positions, heads, tied embeddings, the number of blocks) is the base architecture's.
"""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from smht.errors import UsageError
from smht.layers.block import SPLITTABLE
from smht.layers.position import POSITION_ENCODINGS

BASES = {"split": SPLITTABLE, "dense": ()}
"""First words, and which projections they split."""

DENSE_PARTS = {"dense-output": "output", "dense-qkv": "qkv", "dense-feed-forward": "feed_forward"}
"""Words that take a projection out of `split`."""

POSITIONS = {"no-positions" if kind == "none" else kind: kind for kind in POSITION_ENCODINGS}
"""Words for position encodings."""

WORDS: dict[str, dict[str, Any]] = {
    "shuffle": {"mixing": "shuffle"},
    "head-norm": {"norm_scope": "head"},
    **{word: {} for word in DENSE_PARTS},
    **{word: {"position_embedding": kind} for word, kind in POSITIONS.items()},
}
"""Words after the first, in the order in which a name has them, and the fields that they set."""

LADDER = (
    "split+head-norm",
    "split",
    "split+shuffle",
    "split+shuffle+dense-output",
    "split+shuffle+dense-output+dense-qkv",
    "dense",
)
"""From heads that exchange nothing but sums over the vector to full matrices: each couples heads more than the last."""

ALL_POSITIONS = "positions"
SETS = {"ladder": LADDER, ALL_POSITIONS: (f"split+shuffle+{ALL_POSITIONS}",)}
"""Names of several variants. The word `positions` in a name stands for each position encoding in turn."""

_HEADS = re.compile(r"H=([1-9]\d*)")
CHOSEN_BY_VARIANTS = ("split", "mixing", "norm_scope")
"""Fields that every variant sets."""


@dataclass(frozen=True)
class Variant:
    """One of the models compared.

    Attributes:
        name: its words in the order of `WORDS`.
        changes: fields of `SmhtConfig` that it sets.
    """

    name: str
    changes: dict[str, Any] = field(hash=False)


def parse_variant(text: str) -> Variant:
    """The variant of a name such as `split+shuffle+rotary`.

    Raises:
        UsageError: no such word (the nearest are offered), a word twice, two that exclude each other, or a first word
            that is neither `split` nor `dense`.
    """
    base, *words = (word.strip() for word in text.split("+"))
    if base not in BASES:
        raise UsageError(
            f"variant {text!r} begins with {base!r}, not with split or dense{_nearest(base, [*BASES, *SETS])}"
        )
    for word in words:
        if word in BASES:
            raise UsageError(f"variant {text!r}: {word} stands first")
        if word not in WORDS and not _HEADS.fullmatch(word):
            raise UsageError(f"variant {text!r}: there is no word {word!r}{_nearest(word, [*WORDS, 'H=8'])}")
        if words.count(word) > 1:
            raise UsageError(f"variant {text!r} says {word} twice")
    _refuse_pairs(text, base, words)
    dense = [DENSE_PARTS[word] for word in words if word in DENSE_PARTS]
    changes: dict[str, Any] = {
        "split": tuple(part for part in BASES[base] if part not in dense),
        "mixing": "none",
        "norm_scope": "model",
    }
    for word in words:
        heads = _HEADS.fullmatch(word)
        changes |= {"num_attention_heads": int(heads[1])} if heads else WORDS[word]
    order = [*WORDS, *(word for word in words if word not in WORDS)]
    return Variant("+".join([base, *sorted(words, key=order.index)]), changes)


def parse_variants(texts: Sequence[str]) -> tuple[Variant, ...]:
    """The variants of names, sets of names, and comma-separated lists of both, in order.

    Raises:
        UsageError: what `parse_variant` refuses, the same variant twice, or fewer than two.
    """
    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    names = [single for name in names for member in SETS.get(name, (name,)) for single in _one_a_position(member)]
    variants: list[Variant] = []
    for variant in map(parse_variant, names):
        for other in variants:
            if other.changes == variant.changes:
                also = f" as {other.name}" if other.name != variant.name else ""
                raise UsageError(f"variant {variant.name} is there twice{also}: name each once")
        variants.append(variant)
    if len(variants) < 2:
        raise UsageError(
            f"a comparison needs two variants or more, not {len(variants)}: give --variants such as split,dense, "
            f"or {' or '.join(SETS)}"
        )
    return tuple(variants)


def _one_a_position(name: str) -> list[str]:
    words = name.split("+")
    if ALL_POSITIONS not in words:
        return [name]
    return ["+".join(position if word == ALL_POSITIONS else word for word in words) for position in POSITIONS]


def _refuse_pairs(text: str, base: str, words: Sequence[str]) -> None:
    positions = [word for word in words if word in POSITIONS]
    heads = [word for word in words if _HEADS.fullmatch(word)]
    for several in (positions, heads):
        if len(several) > 1:
            raise UsageError(f"variant {text!r} says {' and '.join(several)}: one of them")
    needless = [word for word in words if word in DENSE_PARTS or word == "shuffle"]
    if base == "dense" and needless:
        raise UsageError(f"variant {text!r}: {needless[0]} is for split models; in dense all is dense, and mixed")


def _nearest(word: str, known: Sequence[str]) -> str:
    """The end of a line about a word that there is not: those nearest to it, or all."""
    near = difflib.get_close_matches(word, known, n=3, cutoff=0.6)
    return f": did you mean {' or '.join(near)}?" if near else f"; words are {', '.join(known)}"
