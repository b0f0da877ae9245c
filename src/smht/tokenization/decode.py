"""From ids back to bytes and, token by token, to text."""

import codecs
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, SupportsIndex

import numpy as np

from smht.errors import UsageError
from smht.tokenization.alphabet import token_to_bytes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class _TokenBytes(dict[int, bytes]):
    """The bytes of each id, found when first asked for; none for a special token."""

    def __init__(self, tokenizer: "PreTrainedTokenizerFast") -> None:
        super().__init__(dict.fromkeys(tokenizer.all_special_ids, b""))
        self._tokenizer = tokenizer

    def __missing__(self, index: int) -> bytes:
        token = self._tokenizer.backend_tokenizer.id_to_token(index) if index >= 0 else None
        if token is None:
            raise UsageError(f"token id {index} is outside the tokenizer's vocabulary of {len(self._tokenizer)}")
        self[index] = token_to_bytes(token)
        return self[index]


def decode_bytes(tokenizer: "PreTrainedTokenizerFast", ids: Sequence[int] | np.ndarray) -> bytes:
    """The bytes that `ids` (`[T]`) stand for, special tokens left out; they need not be valid UTF-8.

    Raises:
        UsageError: an id is negative or not below `len(tokenizer)`.
    """
    table = _TokenBytes(tokenizer)
    data = bytearray()  # joining a list would hold 80 bytes a token meanwhile
    for index in np.asarray(ids).tolist():
        data += table[index]
    return bytes(data)


class StreamDecoder:
    """Text from ids that arrive one at a time, as during generation.

    What the pushes and the final flush return joins to the text of all ids decoded at once: a character comes out
    as soon as its last byte is there, bytes that cannot become a character come out as U+FFFD, special tokens as
    nothing.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerFast") -> None:
        self._table = _TokenBytes(tokenizer)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, index: SupportsIndex) -> str:
        """The text that the token `index` completes, possibly none.

        Raises:
            UsageError: the id is negative or not below `len(tokenizer)`.
        """
        return self._decoder.decode(self._table[operator.index(index)])

    def flush(self) -> str:
        """U+FFFD when the last character is incomplete, else nothing; then ready for another text."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
