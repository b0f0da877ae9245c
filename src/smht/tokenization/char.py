"""The character tokenizer: one token a character seen in training, UTF-8 bytes for the others.

An ASCII character is one byte, so its id is that byte; every other character seen gets an id from 259 on, in order
of code point. A learned token is written as its UTF-8 bytes in the byte-level alphabet, so that decoding joins bytes
whatever the mixture of learned characters and single bytes (`tokenizers`' own `byte_fallback` would turn a whole run
of ASCII into replacement characters when one byte in it is invalid).
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from smht.errors import UsageError
from smht.tokenization.alphabet import (
    FIRST_LEARNED_ID,
    base_vocabulary,
    bytes_to_token,
    encodable,
    id_dtype,
    token_to_bytes,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

_CHUNK_CHARACTERS = 1 << 20


def build(texts: Iterable[str] | None, vocab_size: int | None) -> "Tokenizer":
    """The character tokenizer of `texts`.

    Raises:
        UsageError: `texts` is None or not encodable, or `vocab_size` is given and not what the texts need.
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    if texts is None:
        raise UsageError("the char tokenizer learns its characters from text: give it texts")
    vocabulary = base_vocabulary()
    for character in sorted(set().union(*map(set, encodable(texts)))):
        if not character.isascii():
            vocabulary[bytes_to_token(character.encode())] = len(vocabulary)
    _check_size(vocab_size, len(vocabulary))
    # Each character is looked up whole (`ignore_merges`) and falls apart into bytes when it is not there. Because
    # a piece is one character, no piece can be the string of a special token.
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return tokenizer


def _check_size(asked: int | None, needed: int) -> None:
    if asked is None or asked == needed:
        return
    what = "too small" if asked < needed else "too large"
    raise UsageError(
        f"vocab_size {asked} is {what}: the char tokenizer of this text has exactly {needed} tokens (256 bytes, "
        f"3 special tokens, {needed - FIRST_LEARNED_ID} characters beyond ASCII); leave vocab_size out"
    )


@lru_cache(maxsize=2)
def _learned(tokenizer: "PreTrainedTokenizerFast", size: int) -> tuple[np.ndarray, np.ndarray]:
    """Code points (sorted) and ids of the learned characters; `size` drops the entry when tokens are added."""
    characters = {}
    for token, index in tokenizer.get_vocab().items():
        text = token_to_bytes(token).decode(errors="replace")
        if index >= FIRST_LEARNED_ID and len(text) == 1:
            characters[ord(text)] = index
    points = sorted(characters)
    return np.array(points, dtype=np.uint32), np.array([characters[point] for point in points], dtype=np.uint32)


def encode(tokenizer: "PreTrainedTokenizerFast", text: str) -> np.ndarray:
    """The ids of `text`, those that `tokenizer(text)` gives, by table look-up on code points."""
    points, ids = _learned(tokenizer, len(tokenizer))
    parts = [
        _encode_chunk(text[start : start + _CHUNK_CHARACTERS], points, ids).astype(id_dtype(tokenizer))
        for start in range(0, len(text), _CHUNK_CHARACTERS)
    ]
    return np.concatenate(parts) if parts else np.empty(0, dtype=id_dtype(tokenizer))


def _encode_chunk(text: str, learned_points: np.ndarray, learned_ids: np.ndarray) -> np.ndarray:
    if text.isascii() or not len(learned_points):
        return np.frombuffer(text.encode(), dtype=np.uint8)
    points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    places = np.searchsorted(learned_points, points).clip(max=len(learned_points) - 1)
    known = learned_points[places] == points
    widths = 1 + (points > 0x7F).astype(np.uint8) + (points > 0x7FF) + (points > 0xFFFF)
    widths[known] = 1
    ids = np.repeat(learned_ids[places], widths)
    ids[np.repeat(~known, widths)] = np.frombuffer(points[~known].tobytes().decode("utf-32-le").encode(), np.uint8)
    return ids
