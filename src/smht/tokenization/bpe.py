"""The byte-level BPE tokenizer: GPT-2's pre-tokenizer and merges learned from text.

The pre-tokenizer is GPT-2's unchanged: it made the fewest tokens of source code among those tried, other programs
know it by name, and it keeps `<`, letters and `>` apart, so that no merge can spell a special token.
"""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from smht.errors import UsageError
from smht.tokenization.alphabet import FIRST_LEARNED_ID, SPECIAL_TOKENS, base_vocabulary, encodable, id_dtype
from smht.tokenization.chunks import cut

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

DEFAULT_VOCAB_SIZE = 2048
# A pair that occurs once would only memorise the text it comes from.
_MIN_FREQUENCY = 2
# Small enough that one source file feeds several threads; a batch of them bounds what `tokenizers` keeps for each
# token (over 100 bytes) to some tens of MB.
_CHUNK_CHARACTERS = 1 << 12
_BATCH_CHUNKS = 256


def build(texts: Iterable[str] | None, vocab_size: int | None) -> "Tokenizer":
    """The BPE tokenizer trained on `texts` to `vocab_size` tokens, or fewer where no pair left occurs twice.

    Raises:
        UsageError: `texts` is None or not encodable, or `vocab_size` leaves no room for a merge.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers

    if texts is None:
        raise UsageError("the bpe tokenizer learns its merges from text: give it texts")
    size = DEFAULT_VOCAB_SIZE if vocab_size is None else vocab_size
    if size <= FIRST_LEARNED_ID:
        raise UsageError(
            f"vocab_size {size} is too small: the bpe tokenizer needs at least {FIRST_LEARNED_ID + 1} tokens "
            "(256 bytes, 3 special tokens, 1 merge)"
        )
    merges = _learn_merges(texts, size - len(SPECIAL_TOKENS))
    vocabulary = base_vocabulary()
    for left, right in merges:
        # Two merges may spell the same token, which then has one id.
        vocabulary.setdefault(left + right, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def _learn_merges(texts: Iterable[str], size: int) -> list[tuple[str, str]]:
    """The merges, in order, that bring 256 bytes to `size` tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=_MIN_FREQUENCY,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pieces = (piece for text in encodable(texts) for piece in cut(text, _CHUNK_CHARACTERS))
    learner.train_from_iterator(pieces, trainer)
    return [(left, right) for left, right in json.loads(learner.to_str())["model"]["merges"]]


def encode(tokenizer: "PreTrainedTokenizerFast", text: str) -> np.ndarray:
    """The ids of `text`, those that `tokenizer(text)` gives, in chunks on all cores."""
    backend = tokenizer.backend_tokenizer
    # An earlier `tokenizer(texts, padding=True)` leaves its settings behind; each call of `tokenizer` sets its
    # own, so changing them here harms none.
    backend.no_padding()
    backend.no_truncation()
    backend.encode_special_tokens = True
    chunks = list(cut(text, _CHUNK_CHARACTERS))
    parts = [
        np.array(encoding.ids, dtype=id_dtype(tokenizer))
        for start in range(0, len(chunks), _BATCH_CHUNKS)
        for encoding in backend.encode_batch_fast(chunks[start : start + _BATCH_CHUNKS], add_special_tokens=False)
    ]
    return np.concatenate(parts) if parts else np.empty(0, dtype=id_dtype(tokenizer))
