"""Build a tokenizer by the name of its kind, and tell the kind of one that was loaded.

To add a kind: write a module with `build` (and `encode`, unless ids are the bytes) and add a line to `TOKENIZERS`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from smht.errors import UsageError, did_you_mean
from smht.tokenization import bpe, byte, char
from smht.tokenization.alphabet import SPECIAL_TOKENS

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

_KIND_KEY = "smht_kind"


@dataclass(frozen=True)
class TokenizerKind:
    """How tokenizers of one kind are built and how they encode long texts.

    Attributes:
        build: from training texts and a vocabulary size (either may be None) to the model and pre-tokenizer.
        encode: from the tokenizer and a text to ids, equal to `tokenizer(text)`; None where the ids are the bytes.
    """

    build: Callable[[Iterable[str] | None, int | None], "Tokenizer"]
    encode: Callable[["PreTrainedTokenizerFast", str], np.ndarray] | None


TOKENIZERS = {
    "bpe": TokenizerKind(bpe.build, bpe.encode),
    "byte": TokenizerKind(byte.build, None),
    "char": TokenizerKind(char.build, char.encode),
}


def build_tokenizer(kind: str, texts: Iterable[str] | None, vocab_size: int | None = None) -> "PreTrainedTokenizerFast":
    """A tokenizer of `kind`, learned from `texts`.

    Ids 0 to 255 are the bytes, 256 `<bos>`, 257 `<eos>`, 258 `<pad>`; learned tokens follow. It pads on the
    left, adds no special tokens, reads none out of text, and decodes to exactly the text that was encoded. All of
    it survives `save_pretrained` and `AutoTokenizer.from_pretrained`, also where smht is not installed.

    Args:
        kind: a key of `TOKENIZERS`: "byte" (259 tokens), "char" (every character seen) or "bpe".
        texts: the raw training texts, read once; the byte kind needs none.
        vocab_size: number of tokens. "bpe" takes 2048 when it is None, and has fewer where the texts have no
            more pairs that occur twice (see `len(tokenizer)`); "byte" and "char" accept only what they need.

    Raises:
        UsageError: unknown kind; no texts for a kind that learns; a text with lone surrogates; a `vocab_size`
            below 1, below what the kind or the text needs, or, for "byte" and "char", above it.
    """
    if kind not in TOKENIZERS:
        raise UsageError(f"unknown tokenizer {kind!r}: {did_you_mean(kind, TOKENIZERS)}")
    if vocab_size is not None and vocab_size < 1:
        raise UsageError(f"vocab_size must be at least 1, not {vocab_size}")
    from tokenizers import decoders
    from transformers import PreTrainedTokenizerFast

    backend = TOKENIZERS[kind].build([texts] if isinstance(texts, str) else texts, vocab_size)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        padding_side="left",
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
        **SPECIAL_TOKENS,
        **{_KIND_KEY: kind},
    )


def tokenizer_kind(tokenizer: "PreTrainedTokenizerFast") -> str:
    """The kind that `tokenizer` was built as, also after saving and loading it.

    Raises:
        UsageError: it was not built by `build_tokenizer`, or by a version that knew more kinds.
    """
    kind = tokenizer.init_kwargs.get(_KIND_KEY)
    if kind is None:
        name = f" {tokenizer.name_or_path!r}" if tokenizer.name_or_path else ""
        raise UsageError(
            f"tokenizer{name} was not built by smht: it has no {_KIND_KEY!r} in its tokenizer_config.json; "
            f"build one with build_tokenizer({'|'.join(TOKENIZERS)})"
        )
    if kind not in TOKENIZERS:
        raise UsageError(f"tokenizer is of the unknown kind {kind!r}: {did_you_mean(str(kind), TOKENIZERS)}")
    return kind
