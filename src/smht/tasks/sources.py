"""A corpus read again from what it recorded of itself."""

from collections.abc import Sequence
from typing import BinaryIO

from smht.errors import UsageError
from smht.tasks.corpus import Corpus
from smht.tasks.hub import HUB_PREFIX, hub_dataset_again
from smht.tasks.text_files import STANDARD_INPUT, STANDARD_LIBRARY, read_texts, standard_library


def read_again(sources: Sequence[str], *, stdin: BinaryIO | None = None) -> Corpus:
    """Read again what `Corpus.sources` recorded; `sha256` then says whether the text is still the same.

    Args:
        sources: `Corpus.sources`, or `sources` of a manifest.
        stdin: The same text once more, where a source was standard input.

    Raises:
        UsageError: A source is gone, or was standard input and `stdin` is None.
    """
    if list(sources) == [STANDARD_LIBRARY]:
        return standard_library()
    if len(sources) == 1 and sources[0].startswith(HUB_PREFIX):
        return hub_dataset_again(sources[0])
    if STANDARD_INPUT in sources and stdin is None:
        raise UsageError("the text came from standard input, which cannot be read again: pipe the same text in")
    return read_texts(sources, stdin=stdin)
