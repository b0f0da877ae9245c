"""Cut a text where GPT-2's pre-tokenizer cuts it anyway, so that the pieces' ids join to the whole text's ids."""

import re
from collections.abc import Iterator

# GPT-2's pattern is  's|'t|...| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ . No alternative goes on from
# a non-space to a space, nor from a letter or digit to punctuation, and the only look-ahead belongs to a run of
# spaces, which such a cut never divides.
_ALWAYS_A_BORDER = re.compile(r"\S(?=[ \t\r\n])|[A-Za-z0-9](?=[!-/:-@\[-`{-~])")


def cut(text: str, size: int) -> Iterator[str]:
    """Pieces of `text`, in order and together all of it, of `size` characters and on to the next safe border.

    Where no border follows (one unbroken run of letters, say) a piece is as long as it has to be.
    """
    start = 0
    while len(text) - start > size:
        border = _ALWAYS_A_BORDER.search(text, start + size - 1)
        if border is None:
            break
        yield text[start : border.end()]
        start = border.end()
    if start < len(text):
        yield text[start:]
