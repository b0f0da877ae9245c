"""Byte, character and BPE tokenizers as `transformers.PreTrainedTokenizerFast`.

In all of them ids 0 to 255 are the bytes, 256 to 258 are `<bos>`, `<eos>` and `<pad>`, and what was learned
follows. Text never turns into special tokens: `<eos>` in a document is five characters. `tokenizer(text)` adds no
special tokens either; a caller that wants `<bos>` in front puts `tokenizer.bos_token_id` there.
"""

from smht.tokenization.alphabet import BOS_ID, EOS_ID, FIRST_LEARNED_ID, PAD_ID
from smht.tokenization.build import TOKENIZERS, build_tokenizer, tokenizer_kind
from smht.tokenization.decode import StreamDecoder, decode_bytes
from smht.tokenization.document import decode_document, encode_document

__all__ = [
    "BOS_ID",
    "EOS_ID",
    "FIRST_LEARNED_ID",
    "PAD_ID",
    "TOKENIZERS",
    "StreamDecoder",
    "build_tokenizer",
    "decode_bytes",
    "decode_document",
    "encode_document",
    "tokenizer_kind",
]
