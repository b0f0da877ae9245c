"""One text as a model reads it, for those who look inside."""

from typing import Any

import torch

from smht.errors import UsageError
from smht.tokenization import BOS_ID, EOS_ID, decode_bytes, encode_document


def model_inputs(model: Any, tokenizer: Any, text: str, target: str | None = None) -> dict[str, Any]:
    """A text as the model reads it, `[1, T]`: after a begin token, or as a source with an end token and a target.

    A classifier reads an end token too.

    Raises:
        UsageError: an empty text, text that the tokenizer cannot read, or a target for a model that writes none.
    """
    two_stacks = model.config.is_encoder_decoder
    if target is not None and not two_stacks:
        raise UsageError("--target is for runs of an encoder-decoder")
    if not text:
        raise UsageError("the text is empty")
    ids = encode(tokenizer, text)
    if not two_stacks:
        return {"input_ids": torch.tensor([[BOS_ID, *ids, *([EOS_ID] * hasattr(model, "score"))]])}
    written = encode(tokenizer, target) if target else []
    return {
        "input_ids": torch.tensor([[*ids, EOS_ID]]),
        "decoder_input_ids": torch.tensor([[BOS_ID, *written]]),
    }


def encode(tokenizer: Any, text: str) -> list[int]:
    """Token ids without begin and end.

    Raises:
        UsageError: text that the tokenizer cannot read.
    """
    try:
        # An argument that was no UTF-8 reaches Python as surrogates; its bytes are what the user typed.
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise UsageError(f"the text has half a character at place {error.start}: {text[error.start]!r}") from None
    return [int(i) for i in encode_document(tokenizer, data, source="the text")]


def token_names(tokenizer: Any, ids: list[int]) -> list[str]:
    """Each token as text, special ones by their names, bytes that are no text in hexadecimal: `‹F0 9F›`."""
    special = dict(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True))
    return [special.get(i) or _text_of(decode_bytes(tokenizer, [i])) for i in ids]


def _text_of(piece: bytes) -> str:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return f"‹{piece.hex(' ').upper()}›"


def parse_ids(text: str, vocab_size: int) -> list[int]:
    """Token ids written as `17,52,3,88`.

    Raises:
        UsageError: something else than whole numbers, or one outside the vocabulary.
    """
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{text!r} is no list of token ids: write it like 17,52,3,88") from None
    wrong = [number for number in numbers if not 0 <= number < vocab_size]
    if wrong:
        raise UsageError(f"token id {wrong[0]} is outside the vocabulary of {vocab_size} tokens")
    return numbers
