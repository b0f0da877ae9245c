"""Bytes and streamed text of ids, against Python's own UTF-8 decoder and `tokenizers`' decoder."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smht.errors import UsageError
from smht.tokenization import EOS_ID, TOKENIZERS, StreamDecoder, decode_bytes, encode_document

KINDS = st.sampled_from(sorted(TOKENIZERS))


@given(data=st.binary())
@settings(deadline=None, max_examples=50)
def test_byte_ids_give_their_bytes(tokenizers, data):
    ids = encode_document(tokenizers["byte"], data, source="data")
    assert decode_bytes(tokenizers["byte"], ids) == data
    assert decode_bytes(tokenizers["byte"], [256, *ids.tolist(), 257, 258]) == data


@given(text=st.text(), kind=KINDS)
@settings(deadline=None, max_examples=50)
def test_bytes_of_a_document(tokenizers, text, kind):
    ids = encode_document(tokenizers[kind], text.encode(), source="text")
    assert decode_bytes(tokenizers[kind], ids) == text.encode()


@given(data=st.data(), kind=KINDS)
@settings(deadline=None, max_examples=200)
def test_stream_joins_to_the_text_decoded_at_once(tokenizers, data, kind):
    tokenizer = tokenizers[kind]
    any_id = st.one_of(st.integers(0, len(tokenizer) - 1), st.integers(0x80, 0xFF))
    ids = data.draw(st.lists(any_id, max_size=40))
    decoder = StreamDecoder(tokenizer)
    streamed = "".join([decoder.push(index) for index in ids] + [decoder.flush()])
    assert streamed == decode_bytes(tokenizer, ids).decode("utf-8", "replace")
    assert streamed == tokenizer.decode(ids, skip_special_tokens=True)


@given(text=st.text(min_size=1), kind=KINDS)
@settings(deadline=None, max_examples=100)
def test_stream_gives_characters_as_soon_as_they_are_complete(tokenizers, text, kind):
    tokenizer = tokenizers[kind]
    ids = encode_document(tokenizer, text.encode(), source="text").tolist()
    decoder = StreamDecoder(tokenizer)
    streamed = ""
    for count, index in enumerate(ids, start=1):
        streamed += decoder.push(index)
        assert streamed == decode_bytes(tokenizer, ids[:count]).decode("utf-8", "ignore")
    assert streamed == text and decoder.flush() == ""


def test_stream_of_a_character_in_four_bytes(tokenizers):
    decoder = StreamDecoder(tokenizers["byte"])
    assert [decoder.push(byte) for byte in "é🙂".encode()] == ["", "é", "", "", "", "🙂"]
    assert [decoder.push(0xE4), decoder.push(EOS_ID), decoder.push(ord("a"))] == ["", "", "\ufffda"]
    assert [decoder.push(0xE4), decoder.flush(), decoder.push(0x62), decoder.flush()] == ["", "\ufffd", "b", ""]


def test_stream_takes_numpy_integers(tokenizers):
    assert StreamDecoder(tokenizers["byte"]).push(np.uint16(97)) == "a"


def test_tokens_that_a_user_added_stand_for_themselves(tokenizers, tmp_path):
    from transformers import AutoTokenizer

    tokenizers["char"].save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.add_tokens(["two words 字"])
    ids = [len(tokenizer) - 1, ord("!")]
    assert decode_bytes(tokenizer, ids) == "two words 字!".encode()
    assert tokenizer.decode(ids) == "two words 字!"


@pytest.mark.parametrize("index", [-1, 10_000_000])
def test_id_outside_the_vocabulary(tokenizer, index):
    with pytest.raises(UsageError, match=f"token id {index} is outside the tokenizer's vocabulary of {len(tokenizer)}"):
        decode_bytes(tokenizer, [97, index])
    with pytest.raises(UsageError, match=f"token id {index} is outside"):
        StreamDecoder(tokenizer).push(index)
