"""Ids of whole documents equal those that `tokenizers` gives for the text in one piece."""

import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smht.errors import UsageError
from smht.tokenization import bpe, build_tokenizer, char, encode_document
from smht.tokenization.chunks import cut

PIECES = ["a", "bc", "don't", "'s", "'", "9", "12", ".", "):", "<eos>", "é", "你", "🙂", "_", "e\u0301", "½"]
SPACES = [" ", "  ", "\n", "\r\n", "\n\n", "\t", "\x1c", "\x85", "\xa0", "\u2028", "\u180e", "\u200b", "\x00"]
WORDS = st.sampled_from(PIECES + SPACES)
TEXT = st.one_of(st.lists(WORDS, max_size=60).map("".join), st.text(max_size=60))


@given(text=TEXT, size=st.integers(1, 20))
@settings(deadline=None, max_examples=200)
def test_pieces_join_to_the_text_and_its_pre_tokens(tokenizers, text, size):
    pieces = list(cut(text, size))
    pre_tokenizer = tokenizers["bpe"].backend_tokenizer.pre_tokenizer

    def pre_tokens(part):
        return [token for token, _ in pre_tokenizer.pre_tokenize_str(part)]

    assert "".join(pieces) == text and all(pieces)
    assert [token for piece in pieces for token in pre_tokens(piece)] == pre_tokens(text)


def test_every_space_of_the_pre_tokenizer_is_known(tokenizers):
    """Python and the pre-tokenizer must agree that what we take for a non-space is one."""
    pre_tokenizer = tokenizers["bpe"].backend_tokenizer.pre_tokenizer
    characters = [c for c in map(chr, range(0x110000)) if unicodedata.category(c) in {"Cc", "Cf", "Zs", "Zl", "Zp"}]
    assert len(characters) > 200
    for character in characters:
        text = f"{character} x"
        whole = [token for token, _ in pre_tokenizer.pre_tokenize_str(text)]
        parts = [token for piece in cut(text, 1) for token, _ in pre_tokenizer.pre_tokenize_str(piece)]
        assert parts == whole, ascii(character)


def test_pieces_are_not_much_longer_than_asked():
    code = "    def f(self, x):\n        return {'key': [1,2,3]}\n" * 500
    minified = '{"key":[1,2,3],"other":{"name":"value"}},' * 500
    assert max(map(len, cut(code, 100))) <= 120
    assert max(map(len, cut(minified, 100))) <= 120
    assert max(map(len, cut("don't" * 500, 100))) <= 120
    assert list(cut("x" * 1000, 10)) == ["x" * 1000]


@given(text=TEXT, size=st.integers(1, 9), batch=st.integers(1, 3))
@settings(deadline=None, max_examples=100)
def test_bpe_and_char_equal_the_whole_text(tokenizers, text, size, batch):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bpe, "_CHUNK_CHARACTERS", size)
        patch.setattr(bpe, "_BATCH_CHUNKS", batch)
        patch.setattr(char, "_CHUNK_CHARACTERS", size)
        for kind in ("bpe", "char"):
            backend = tokenizers[kind].backend_tokenizer
            whole = backend.encode(text, add_special_tokens=False).ids
            assert encode_document(tokenizers[kind], text.encode(), source="text").tolist() == whole


def test_a_long_document_in_default_chunks(tokenizer):
    text = "    x = naïve('你好 🙂')  # <eos> don't\r\n\n" * 3000
    ids = encode_document(tokenizer, text.encode(), source="text")
    assert ids.tolist() == tokenizer(text)["input_ids"]


def test_char_without_learned_characters_falls_back_to_bytes():
    tokenizer = build_tokenizer("char", ["ascii only"])
    text = "é🙂a"
    assert encode_document(tokenizer, text.encode(), source="text").tolist() == list(text.encode())
    assert tokenizer(text)["input_ids"] == list(text.encode())


def test_padding_and_truncation_of_earlier_calls_do_not_leak(tokenizer):
    expected = tokenizer("a <eos> b")["input_ids"]
    tokenizer(["a", "bb"], padding="max_length", max_length=50, truncation=True, split_special_tokens=False)
    assert encode_document(tokenizer, b"a <eos> b", source="text").tolist() == expected
    tokenizer(["a b c d", "b"], padding=True, truncation=True, max_length=2)
    assert encode_document(tokenizer, b"a <eos> b", source="text").tolist() == expected
    assert tokenizer("a <eos> b")["input_ids"] == expected


@given(data=st.binary())
@settings(deadline=None, max_examples=50)
def test_byte_takes_any_bytes(tokenizers, data):
    assert encode_document(tokenizers["byte"], data, source="data").tolist() == list(data)


@pytest.mark.parametrize("kind", ["bpe", "char"])
@given(data=st.binary())
@settings(deadline=None, max_examples=50)
def test_replacing_invalid_bytes(tokenizers, kind, data):
    ids = encode_document(tokenizers[kind], data, source="data", errors="replace").tolist()
    assert ids == tokenizers[kind](data.decode("utf-8", "replace"))["input_ids"]


def test_dtype_follows_the_vocabulary(tokenizer):
    for data in (b"", b"abc", "é🙂".encode()):
        ids = encode_document(tokenizer, data, source="text")
        assert ids.dtype == np.uint16 and ids.ndim == 1 and ids.flags.writeable


def test_large_vocabulary_takes_uint32():
    characters = "".join(chr(point) for point in range(0x4E00, 0x9FFF)) + "".join(map(chr, range(0x20000, 0x2B000)))
    tokenizer = build_tokenizer("char", [characters])
    assert len(tokenizer) == 259 + len(characters) > 65536
    ids = encode_document(tokenizer, "a\U0002afff".encode(), source="text")
    assert ids.dtype == np.uint32 and ids.tolist() == [97, len(tokenizer) - 1]


@pytest.mark.parametrize("kind", ["bpe", "char"])
@pytest.mark.parametrize(
    ("data", "byte", "offset", "line"),
    [
        (b"\xff", "0xff", 0, 1),
        (b"ab\ncd\r\n\xc3\xa9\xe9 x", "0xe9", 9, 3),
        (b"ends in half \xe4\xbd", "0xe4", 13, 1),
        (b"surrogate\n\xed\xa0\x80", "0xed", 10, 2),
    ],
)
def test_invalid_utf8_is_located(tokenizers, kind, data, byte, offset, line):
    with pytest.raises(UsageError) as caught:
        encode_document(tokenizers[kind], data, source="folder/notes.txt")
    message = str(caught.value)
    assert message.startswith(f"folder/notes.txt: not UTF-8 text: byte {byte} at offset {offset} (line {line})")
    assert "--errors replace" in message and "--tokenizer byte" in message and "\n" not in message


def test_unknown_errors_mode(tokenizer):
    with pytest.raises(UsageError, match=r"unknown errors='replac': did you mean replace\?"):
        encode_document(tokenizer, b"x", source="text", errors="replac")
