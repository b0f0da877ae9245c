"""A corpus divided into a part to learn from and a part to validate on."""

import hashlib
import itertools
from collections.abc import Sequence

from smht.errors import UsageError
from smht.tasks.corpus import Corpus, Document, counted

_FEWEST_WHOLE_DOCUMENTS = 20
_OVERSHOOT = 1.1


def hold_out(
    corpus: Corpus, *, fraction: float = 0.1, max_bytes: int | None = 131072, seed: int = 0
) -> tuple[Corpus, Corpus]:
    """Split a corpus into a training and a validation part.

    With fewer than 20 documents the end of each is held out: byte `int(n * (1 - fraction))` onward, as in
    nanoGPT, moved on to the next UTF-8 character. With 20 or more, whole documents are, in an order that
    depends on their names and `seed` only, until `min(fraction * bytes, max_bytes)` bytes are reached. A
    document that would pass this by more than a tenth is left for a smaller one; if all would, the smallest
    is held out. Copies of a held-out document leave the training part.

    Args:
        corpus: The whole.
        fraction: Part of the bytes to hold out, in (0, 1).
        max_bytes: The most that `fraction` may come to; None for no limit.
        seed: Chooses among whole documents.

    Returns:
        The training part and the validation part, documents in the order of `corpus`.

    Raises:
        UsageError: A number out of range, or a text that leaves one of the parts empty.
    """
    if not 0 < fraction < 1:
        raise UsageError(f"the fraction held out must lie between 0 and 1, not {fraction}")
    if max_bytes is not None and max_bytes <= 0:
        raise UsageError(f"max_bytes must be positive, not {max_bytes}")
    limit = corpus.num_bytes if max_bytes is None else max_bytes
    if len(corpus.documents) < _FEWEST_WHOLE_DOCUMENTS:
        training, validation = _hold_out_ends(corpus.documents, fraction, limit)
        kept, held = "", "the end of each document"
    else:
        target = min(fraction * corpus.num_bytes, limit)
        training, validation, copies = _hold_out_documents(corpus.documents, target, seed)
        kept = f" ({counted(copies, 'copy', 'copies')} of held-out documents left out)" if copies else ""
        held = counted(len(validation), "whole document")
    if not training or not validation:
        raise UsageError(
            f"the text is too short to hold out a part for validation: {corpus.num_bytes:,} bytes in "
            f"{counted(len(corpus.documents), 'document')}, copies not counted, at a fraction of {fraction:g}"
        )
    return (
        Corpus(f"training part of {corpus.description}{kept}", corpus.sources, tuple(training)),
        Corpus(f"validation part of {corpus.description} ({held})", corpus.sources, tuple(validation)),
    )


def _hold_out_ends(documents: Sequence[Document], fraction: float, limit: int) -> tuple[list[Document], list[Document]]:
    sizes = [len(document.data) for document in documents]
    cuts = [int(size * (1 - fraction)) for size in sizes]
    if sum(sizes) - sum(cuts) > limit:
        cuts = [size - size * limit // sum(sizes) for size in sizes]
    cuts = [_next_character(document.data, cut) for document, cut in zip(documents, cuts, strict=True)]
    training = [Document(d.name, d.data[:cut]) for d, cut in zip(documents, cuts, strict=True) if cut]
    validation = [Document(d.name, d.data[cut:]) for d, cut in zip(documents, cuts, strict=True) if cut < len(d.data)]
    return training, validation


def _next_character(data: bytes, cut: int) -> int:
    """`cut`, or the end of the UTF-8 character (1 byte and up to 3 continuation bytes) that it falls into."""
    inside = itertools.takewhile(lambda byte: byte & 0xC0 == 0x80, data[cut : cut + 3])
    return cut + sum(1 for _ in inside)


def _hold_out_documents(
    documents: Sequence[Document], target: float, seed: int
) -> tuple[list[Document], list[Document], int]:
    """Training and validation documents, and how many copies of the latter were left out of the former."""
    unique = {document.data: document for document in reversed(documents)}
    order = sorted(unique.values(), key=lambda document: _draw(document.name, seed))
    held: set[bytes] = set()
    num_held = 0
    for document in order:
        if num_held >= target or len(held) == len(unique) - 1:
            break
        if num_held + len(document.data) <= _OVERSHOOT * target:
            held.add(document.data)
            num_held += len(document.data)
    if not held:
        held.add(min(unique, key=len))
    training = [document for document in documents if document.data not in held]
    validation = [document for document in documents if unique[document.data] is document and document.data in held]
    return training, validation, len(documents) - len(training) - len(validation)


def _draw(name: str, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}\0{name}".encode("utf-8", "surrogatepass")).digest()
