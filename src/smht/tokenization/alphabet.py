"""The ids that all tokenizers share, and the byte-level alphabet in which `tokenizers` writes bytes.

`tokenizers` keeps tokens as strings, so a byte is written as one printable character (GPT-2's byte-level
alphabet): printable Latin-1 bytes as themselves, the other bytes as the characters from U+0100 on, in order.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from smht.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SPECIAL_TOKENS = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}
BOS_ID, EOS_ID, PAD_ID = 256, 257, 258
FIRST_LEARNED_ID = 259


@cache
def byte_characters() -> tuple[str, ...]:
    """The byte-level alphabet's character for each of the bytes 0 to 255."""
    from tokenizers.pre_tokenizers import ByteLevel

    alphabet = sorted(ByteLevel.alphabet())
    unchanged = {ord(character) for character in alphabet if ord(character) < 256}
    shifted = (character for character in alphabet if ord(character) >= 256)
    return tuple(chr(byte) if byte in unchanged else next(shifted) for byte in range(256))


@cache
def _character_bytes() -> dict[str, int]:
    return {character: byte for byte, character in enumerate(byte_characters())}


def bytes_to_token(data: bytes) -> str:
    """The token string that stands for `data`."""
    characters = byte_characters()
    return "".join(characters[byte] for byte in data)


def token_to_bytes(token: str) -> bytes:
    """The bytes that a token string stands for, by the rule of `tokenizers`' byte-level decoder.

    A token with any character outside the alphabet (one that a user added) stands for its own UTF-8 bytes.
    """
    known = _character_bytes()
    if all(character in known for character in token):
        return bytes(known[character] for character in token)
    return token.encode()


def base_vocabulary() -> dict[str, int]:
    """Token string to id of what every tokenizer starts with: 256 bytes, then 3 special tokens."""
    tokens = (*byte_characters(), *SPECIAL_TOKENS.values())
    return {token: index for index, token in enumerate(tokens)}


def id_dtype(tokenizer: "PreTrainedTokenizerFast") -> type[np.unsignedinteger]:
    """The smallest of uint16 and uint32 that holds every id of `tokenizer`."""
    return np.uint16 if len(tokenizer) <= 1 << 16 else np.uint32


def encodable(texts: Iterable[str]) -> Iterator[str]:
    """`texts` one by one, each checked to be text that UTF-8 can encode.

    Raises:
        UsageError: a text holds a lone surrogate.
    """
    for number, text in enumerate(texts):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"text {number} holds the lone surrogate U+{ord(text[error.start]):04X} at character "
                f"{error.start}, which UTF-8 cannot encode; decode its bytes with errors='replace'"
            ) from None
        yield text
