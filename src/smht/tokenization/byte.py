"""The byte tokenizer: one token a byte of UTF-8, nothing to learn."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from smht.errors import UsageError
from smht.tokenization.alphabet import FIRST_LEARNED_ID, base_vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def build(texts: Iterable[str] | None, vocab_size: int | None) -> "Tokenizer":
    """The byte tokenizer, 259 tokens; `texts` is not read.

    Raises:
        UsageError: `vocab_size` is given and not 259.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers

    if vocab_size not in (None, FIRST_LEARNED_ID):
        raise UsageError(
            f"vocab_size {vocab_size} does not fit: the byte tokenizer has exactly {FIRST_LEARNED_ID} tokens "
            "(256 bytes, 3 special tokens); leave vocab_size out"
        )
    tokenizer = Tokenizer(models.BPE(vocab=base_vocabulary(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return tokenizer
