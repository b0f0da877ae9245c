"""From the raw bytes of a document to the ids of its tokens."""

from typing import TYPE_CHECKING

import numpy as np

from smht.errors import UsageError, did_you_mean
from smht.tokenization.alphabet import id_dtype
from smht.tokenization.build import TOKENIZERS, tokenizer_kind

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def encode_document(
    tokenizer: "PreTrainedTokenizerFast", data: bytes, *, source: str, errors: str = "strict"
) -> np.ndarray:
    """The ids of a document's tokens, without special tokens.

    Args:
        tokenizer: one of `build_tokenizer`'s. The byte kind takes any bytes, the others UTF-8 text.
        data: the document as it is stored; nothing in it (line ends, byte order mark) is changed.
        source: the document's name in error lines.
        errors: "strict" refuses what is not UTF-8, "replace" puts U+FFFD in its place.

    Returns:
        `[T]`, uint16 when `len(tokenizer)` is at most 65,536 and uint32 otherwise; the same ids as
        `tokenizer(text)["input_ids"]`. For the byte kind T is `len(data)`.

    Raises:
        UsageError: the data is not UTF-8 (and `errors` is "strict"), `errors` is neither of the two, or the
            tokenizer was not built by smht.
    """
    if errors not in ("strict", "replace"):
        raise UsageError(f"unknown errors={errors!r}: {did_you_mean(errors, ('strict', 'replace'))}")
    encode = TOKENIZERS[tokenizer_kind(tokenizer)].encode
    if encode is None:
        return np.frombuffer(data, dtype=np.uint8).astype(id_dtype(tokenizer))
    return encode(tokenizer, decode_document(data, source=source, errors=errors))


def decode_document(data: bytes, *, source: str, errors: str = "strict") -> str:
    """A document's text.

    Raises:
        UsageError: the data is not UTF-8 and `errors` is "strict"; the message names the place and the ways out.
    """
    try:
        return data.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"{source}: not UTF-8 text: byte 0x{data[error.start]:02x} at offset {error.start} (line {line}); "
            "save it as UTF-8, or let --errors replace, where a command has it, put U+FFFD there; --tokenizer byte "
            "trains on the bytes as they are"
        ) from None
