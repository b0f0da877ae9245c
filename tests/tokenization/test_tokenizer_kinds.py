"""What every tokenizer promises: id layout, exact round trips, text that stays text, error lines."""

import hashlib
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smht.errors import UsageError
from smht.tokenization import BOS_ID, EOS_ID, FIRST_LEARNED_ID, PAD_ID, TOKENIZERS, build_tokenizer, tokenizer_kind

KINDS = sorted(TOKENIZERS)
TEXTS = [
    "",
    " leading and trailing ",
    "tabs\tand\r\nCRLF\rCR\n\n\n   indented .  , !",
    "NUL \x00 and \x1f\x7f\x85\ufeff\u2028 controls",
    "e\u0301 combining, שלום مرحبا, 🙂👩‍👩‍👧 \U0010ffff",
    "don't, I'M, we've 123456 ½ Ⅷ _x_",
    "<bos><eos><pad> <eos>x<pad",
    "<bos>",
    "do n't clean this up , please ?",
]


@pytest.mark.parametrize("kind", KINDS)
def test_ids_of_bytes_and_special_tokens(tokenizers, kind):
    tokenizer = tokenizers[kind]
    for byte in range(128):
        assert tokenizer(chr(byte))["input_ids"] == [byte]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (BOS_ID, EOS_ID, PAD_ID)
    assert tokenizer.convert_ids_to_tokens([256, 257, 258]) == ["<bos>", "<eos>", "<pad>"]
    assert sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))
    assert tokenizer_kind(tokenizer) == kind


@given(text=st.text())
@settings(deadline=None, max_examples=50)
def test_byte_ids_are_utf8(tokenizers, text):
    assert tokenizers["byte"](text)["input_ids"] == list(text.encode())


@given(text=st.text(alphabet=st.one_of(st.sampled_from("abΩé你🙂"), st.characters(exclude_categories=["Cs"]))))
@settings(deadline=None, max_examples=50)
def test_char_ids_are_code_point_order_then_bytes(text):
    tokenizer = build_tokenizer("char", ["Ω你🙂abc", "é你"])
    learned = {"é": 259, "Ω": 260, "你": 261, "🙂": 262}
    expected = [index for c in text for index in ([learned[c]] if c in learned else c.encode())]
    assert len(tokenizer) == 263
    assert tokenizer(text)["input_ids"] == expected


@pytest.mark.parametrize("text", TEXTS)
def test_round_trip_of_awkward_text(tokenizer, text):
    encoded = tokenizer(text)
    assert set(encoded) == {"input_ids", "attention_mask"}
    assert not {BOS_ID, EOS_ID, PAD_ID} & set(encoded["input_ids"])
    assert tokenizer.encode(text) == encoded["input_ids"]
    assert tokenizer.decode(encoded["input_ids"], skip_special_tokens=True) == text


@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"])), kind=st.sampled_from(KINDS))
@settings(deadline=None, max_examples=100)
def test_round_trip_of_any_text(tokenizers, text, kind):
    tokenizer = tokenizers[kind]
    ids = [BOS_ID, *tokenizer(text)["input_ids"], EOS_ID, PAD_ID]
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_special_token_text_is_never_learned():
    tokenizer = build_tokenizer("bpe", ["<eos><bos><pad>" * 1000, "x <eos> y" * 1000], vocab_size=600)
    ids = tokenizer("<eos><bos><pad>")["input_ids"]
    assert min(ids) != max(ids) and not {BOS_ID, EOS_ID, PAD_ID} & set(ids)
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<eos><bos><pad>"


def test_batches_pad_on_the_left(tokenizer):
    batch = tokenizer(["ab<pad>", "x"], padding=True)
    long, short = batch["input_ids"]
    assert short == [PAD_ID] * (len(long) - 1) + [ord("x")]
    assert batch["attention_mask"] == [[1] * len(long), [0] * (len(long) - 1) + [1]]
    assert tokenizer.batch_decode(batch["input_ids"], skip_special_tokens=True) == ["ab<pad>", "x"]


def test_pickle_keeps_ids(tokenizer):
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert tokenizer_kind(copy) == tokenizer_kind(tokenizer)
    for text in TEXTS:
        assert copy(text)["input_ids"] == tokenizer(text)["input_ids"]


RELOAD = """
import json, sys
from transformers import AutoTokenizer
folders, texts = json.loads(sys.stdin.read())
out = {}
for folder in folders:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(texts)["input_ids"]
    assert [tokenizer.decode(i, skip_special_tokens=True) for i in ids] == texts, folder
    padded = tokenizer(["ab", "c"], padding=True)
    out[folder] = [len(tokenizer), ids, padded["input_ids"], padded["attention_mask"]]
assert not any(name.split(".")[0] == "smht" for name in sys.modules)
print(json.dumps(out))
"""


def test_reload_by_auto_tokenizer_without_smht(tokenizers, tmp_path):
    folders = {kind: str(tmp_path / kind) for kind in KINDS}
    for kind, folder in folders.items():
        tokenizers[kind].save_pretrained(folder)
        (tmp_path / kind / "config.json").write_text('{"model_type": "smht", "architectures": ["SmhtForCausalLM"]}')
    child = subprocess.run(
        [sys.executable, "-c", RELOAD],
        input=json.dumps([list(folders.values()), TEXTS]),
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert child.returncode == 0, child.stderr
    reloaded = json.loads(child.stdout)
    for kind, folder in folders.items():
        padded = tokenizers[kind](["ab", "c"], padding=True)
        assert reloaded[folder] == [
            len(tokenizers[kind]),
            [tokenizers[kind](text)["input_ids"] for text in TEXTS],
            padded["input_ids"],
            padded["attention_mask"],
        ]


def test_kind_survives_saving(tokenizer, tmp_path):
    from transformers import AutoTokenizer

    tokenizer.save_pretrained(tmp_path)
    reloaded = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer_kind(reloaded) == tokenizer_kind(tokenizer)
    reloaded.save_pretrained(tmp_path / "again")
    again = AutoTokenizer.from_pretrained(tmp_path / "again")
    assert tokenizer_kind(again) == tokenizer_kind(tokenizer)
    assert again("<eos>é")["input_ids"] == tokenizer("<eos>é")["input_ids"]


def test_bpe_fills_its_vocabulary_and_compresses():
    text = Path(hashlib.__file__).read_text("utf-8")
    tokenizer = build_tokenizer("bpe", [text], vocab_size=500)
    assert len(tokenizer) == 500
    assert len(tokenizer(text)["input_ids"]) < len(text) / 1.8


def test_bpe_of_a_small_text_has_fewer_tokens_than_asked():
    assert len(build_tokenizer("bpe", ["ab ab"])) == FIRST_LEARNED_ID + 1
    assert len(build_tokenizer("bpe", [])) == FIRST_LEARNED_ID


def test_a_single_string_is_one_text():
    assert build_tokenizer("bpe", "ab ab")("ab")["input_ids"] == [FIRST_LEARNED_ID]


TRAIN = """
import hashlib, pydoc
from smht.tokenization.bpe import build
text = open(pydoc.__file__, encoding="utf-8").read()
tokenizer = build([text[:40000], text[40000:]], vocab_size=700)
print(hashlib.sha256(tokenizer.to_str().encode()).hexdigest())
"""


def test_bpe_does_not_depend_on_threads():
    printed = [
        subprocess.run(
            [sys.executable, "-c", TRAIN],
            capture_output=True,
            check=True,
            env={**os.environ, "RAYON_NUM_THREADS": threads},
        ).stdout
        for threads in ("1", "5")
    ]
    assert len(printed[0]) == 65 and printed[0] == printed[1]


FORK = """
import os, warnings
warnings.simplefilter("ignore")
from smht.tokenization import build_tokenizer, encode_document
before = dict(os.environ)
tokenizer = build_tokenizer("bpe", ["ab ab " * 10000])
encode_document(tokenizer, b"ab " * 10000, source="text")
assert dict(os.environ) == before
child = os.fork()
if child == 0:
    encode_document(tokenizer, b"ab " * 10000, source="text")
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_forking_after_use_is_silent_and_safe():
    environment = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    child = subprocess.run(
        [sys.executable, "-c", FORK], capture_output=True, text=True, check=True, env=environment, timeout=120
    )
    assert child.stdout == "0\n"
    assert "forked" not in child.stderr


def test_importing_is_cheap():
    script = "import sys, smht.tokenization; print(sorted({'torch', 'transformers', 'tokenizers'} & set(sys.modules)))"
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert child.stdout == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("bytes", None), ["unknown tokenizer 'bytes'", "did you mean byte"]),
        (("wordpiece", None), ["unknown tokenizer 'wordpiece'", "choose from bpe, byte, char"]),
        (("bpe", None), ["bpe tokenizer", "give it texts"]),
        (("char", None), ["char tokenizer", "give it texts"]),
        (("byte", None, 0), ["vocab_size must be at least 1, not 0"]),
        (("bpe", ["x"], -3), ["vocab_size must be at least 1, not -3"]),
        (("byte", None, 258), ["vocab_size 258 does not fit", "exactly 259 tokens"]),
        (("byte", None, 260), ["vocab_size 260 does not fit", "exactly 259 tokens"]),
        (("bpe", ["x"], 259), ["vocab_size 259 is too small", "at least 260 tokens"]),
        (("char", ["aéΩ"], 260), ["vocab_size 260 is too small", "exactly 261 tokens", "2 characters beyond ASCII"]),
        (("char", ["aéΩ"], 262), ["vocab_size 262 is too large", "exactly 261 tokens"]),
        (("char", ["fine", "ab\udc80"]), ["text 1", "lone surrogate U+DC80 at character 2"]),
        (("bpe", ["ab\udc80"]), ["text 0", "lone surrogate U+DC80 at character 2"]),
    ],
)
def test_error_lines(arguments, parts):
    with pytest.raises(UsageError) as caught:
        build_tokenizer(*arguments)
    line = str(caught.value)
    assert "\n" not in line
    for part in parts:
        assert part in line


def test_exact_vocab_sizes_are_accepted():
    assert len(build_tokenizer("byte", None, 259)) == 259
    assert len(build_tokenizer("char", ["aéΩ"], 261)) == 261
    assert len(build_tokenizer("bpe", ["abc abc"], 260)) == 260


def test_kind_of_a_foreign_tokenizer():
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    foreign = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(vocab={"a": 0}, merges=[])))
    with pytest.raises(UsageError, match="was not built by smht: it has no 'smht_kind'"):
        tokenizer_kind(foreign)
    foreign.init_kwargs["smht_kind"] = "chars"
    with pytest.raises(UsageError, match=r"unknown kind 'chars': did you mean char\?"):
        tokenizer_kind(foreign)
