"""Whatever is asked for wrongly gives one line and an exit code, and changes nothing on disk."""

import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from helpers.command_line import FOUR_STEPS, TINY, refuse, smht
from smht import PRESETS, SmhtConfig
from smht.errors import UsageError
from smht.training import files, preparation

TRAIN = ("train", "text.txt", *TINY, "--output", "run")
"""Without a budget; a flag given again after it takes the place of the first."""


@pytest.fixture(autouse=True)
def texts(workplace: Path) -> None:
    Path("empty.txt").touch()
    Path("short.txt").write_bytes(b"fifteen letters")
    Path("latin-1.txt").write_bytes(b"one\ntwo caf\xe9\n" * 99)
    Path("binary").write_bytes(bytes(range(256)) * 8)
    Path("folder").mkdir()
    Path("folder/other.dat").write_bytes(b"\0\1\2")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("missing.txt", "no such file or folder: 'missing.txt'"),
        ("txet.txt", "did you mean text.txt"),
        ("nowhere/text.txt", ("no such file or folder", "there is no folder")),
        ("empty.txt", "'empty.txt' is empty"),
        ("*.md", "'*.md' matches no file"),
        ("folder", ("'folder' holds only binary files", "name a file itself")),
        ("-", "standard input is empty"),
    ],
)
def test_text_that_is_not_there(name: str, says: str) -> None:
    refuse("train", name, *TINY, "--output", "run", says=says)
    refuse(*TRAIN, "--validation", name, says=says if name != "-" else "--validation cannot come from standard input")


def test_text_shorter_than_a_block() -> None:
    says = ("tokens, fewer than one block of 17", "give more text or a smaller --context")
    refuse("train", "short.txt", *TINY, "--output", "run", says=says)


def test_text_too_short_to_hold_anything_out() -> None:
    Path("one.txt").write_bytes(b"1")
    refuse("train", "one.txt", *TINY, "--output", "run", says="too short to hold out a part for validation")


@pytest.mark.parametrize("tokenizer", ["char", "bpe"])
@pytest.mark.parametrize(
    ("name", "place"),
    [("latin-1.txt", "byte 0xe9 at offset 11 (line 2)"), ("binary", "byte 0x80 at offset 128 (line 2)")],
)
def test_text_that_is_not_utf8(tokenizer: str, name: str, place: str) -> None:
    says = (f"{name}: not UTF-8 text: {place}", "--errors replace", "--tokenizer byte")
    refuse("train", name, *TINY, "--tokenizer", tokenizer, "--output", "run", says=says)
    refuse(*TRAIN, "--tokenizer", tokenizer, "--validation", name, says=says)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--hidden-size", "18", "--num-attention-heads", "4"), ("hidden_size = 18", "heads = 4", "16 and 20")),
        (("--intermediate-size", "33"), ("intermediate_size = 33", "heads = 2", "32 and 34")),
        (("--num-attention-heads", "32"), ("hidden_size = 16", "num_attention_heads = 32")),
        (("--dropout", "1"), "hidden_dropout = 1.0"),
        (("--split", "qkv,outptu"), ("'outptu'", "did you mean output?")),
        (
            ("--split", "none", "--mixing", "shuffle"),
            "mixing = 'shuffle' would do nothing where no projection is split",
        ),
        (("--num-attention-heads", "1"), "mixing = 'shuffle' would do nothing where there is one head"),
    ],
)
def test_architectures_that_make_no_model(arguments: tuple[str, ...], says: tuple[str, ...]) -> None:
    refuse(*TRAIN, *arguments, says=says)


AT_LEAST_ONE = (
    *("--hidden-size", "--num-hidden-layers", "--num-attention-heads", "--intermediate-size", "--vocab-size"),
    *("--context", "--batch-size", "--steps", "--evaluate-every", "--keep-checkpoints"),
)
ABOVE_ZERO = ("--epochs", "--learning-rate", "--layer-norm-eps", "--initializer-range")
AT_LEAST_ZERO = ("--weight-decay", "--hidden-dropout", "--attention-dropout")


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        *((flag, value) for flag in AT_LEAST_ONE for value in ("0", "-1")),
        *((flag, value) for flag in ABOVE_ZERO for value in ("0", "-1", "nan", "inf")),
        *((flag, value) for flag in AT_LEAST_ZERO for value in ("-1", "nan", "inf")),
        *(("--warmup", "-1"), ("--seed", "-1"), ("--seed", str(2**32))),
    ],
)
def test_numbers_out_of_range(flag: str, value: str) -> None:
    refuse(*TRAIN, flag, value, says=f"{flag[2:].replace('-', '_')} = {value}")


@pytest.mark.parametrize("value", ["0", "-1", "1", "nan"])
def test_fractions_out_of_range(value: str) -> None:
    refuse(*TRAIN, "--validation-fraction", value, says=("the fraction held out", f"not {float(value)}"))
    if value != "0":
        refuse(*TRAIN, "--dropout", value, says=f"hidden_dropout = {float(value)} must be at least 0 and below 1")


@pytest.mark.parametrize("flag", [*AT_LEAST_ONE, *ABOVE_ZERO, *AT_LEAST_ZERO, "--warmup", "--seed", "--dropout"])
def test_numbers_that_are_none(flag: str) -> None:
    refuse(*TRAIN, flag, "many", says=(f"invalid value for '{flag}'", "valid", "see smht train --help"))


@pytest.mark.parametrize("value", ["0s", "-2s", "soon", "", "nan", "inf"])
def test_times_that_are_none(value: str) -> None:
    refuse(*TRAIN, "--time", value, says=(repr(value), "is no duration", "90s, 2m or 1h30m"))


@pytest.mark.parametrize("second", [("--time", "2m"), ("--epochs", "1")])
def test_two_budgets(second: tuple[str, str]) -> None:
    refuse(*TRAIN, "--steps", "4", *second, says=(f"--steps and {second[0]} are both budgets", "give one"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--vocab-size", "258"), ("vocab_size 258", "the byte tokenizer has exactly 259")),
        (
            ("--tokenizer", "char", "--vocab-size", "259"),
            ("vocab_size 259 is too small", "exactly 260", "1 characters"),
        ),
        (("--tokenizer", "bpe", "--vocab-size", "259"), ("vocab_size 259 is too small", "at least 260")),
    ],
)
def test_vocabularies_smaller_than_the_text_needs(arguments: tuple[str, ...], says: tuple[str, ...]) -> None:
    refuse(*TRAIN, *arguments, says=says)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("trian", "text.txt"), ("no such command 'trian'", "'train'")),
        (("xyz",), ("no such command 'xyz'", "see smht --help")),
        (("--versoin",), ("--versoin", "did you mean --version?")),
        ((*TRAIN, "--hiden-size", "8"), ("--hiden-size", "did you mean --hidden-size")),
        ((*TRAIN, "--xyz"), ("--xyz", "see smht train --help")),
        ((*TRAIN, "--steps"), ("'--steps' requires an argument",)),
        ((*TRAIN, "--projection-bias=yes"), ("'--projection-bias' does not take a value",)),
        ((*TRAIN, "--preset", "smht-smal"), ("'smht-smal'", "did you mean smht-small")),
        ((*TRAIN, "--preset", "gpt"), ("'gpt'", *PRESETS)),
        ((*TRAIN, "--mixing", "shufle"), ("'--mixing'", "'shufle'", "'none', 'shuffle'")),
        ((*TRAIN, "--norm-scope", "heads"), ("'--norm-scope'", "'heads'", "'model', 'head'")),
        ((*TRAIN, "--hidden-act", "gelo"), ("'--hidden-act'", "'gelo'", "'gelu'", "'silu'")),
        ((*TRAIN, "--tokenizer", "bite"), ("'--tokenizer'", "'bite'", "'byte', 'bpe', 'char'")),
        ((*TRAIN, "--errors", "ignore"), ("'--errors'", "'ignore'", "'strict', 'replace'")),
        ((*TRAIN, "--dtype", "float64"), ("'--dtype'", "'float64'", "'float32', 'bfloat16'")),
        ((*TRAIN, "--device", "gpu"), ("'--device'", "'gpu'", "'cuda'")),
    ],
)
def test_unknown_names(arguments: tuple[str, ...], says: tuple[str, ...]) -> None:
    line = refuse(*arguments, says=says)
    assert line[len("smht: ")].islower()


def test_a_misspelt_field_in_python() -> None:
    with pytest.raises(UsageError, match="no field 'hiden_size': did you mean hidden_size"):
        SmhtConfig(**{"hiden_size": 8})


def test_texts_and_a_dataset() -> None:
    refuse(*TRAIN, "--dataset", "someone/some-data", says="texts and --dataset exclude each other")


def test_two_ways_to_hold_out() -> None:
    refuse(*TRAIN, "--validation", "text.txt", "--validation-fraction", "0.2", says="exclude each other")


def test_an_unknown_dataset_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path.with_name("cache"))
    says = ("dataset 'someone/some-data': the hub could not be reached", "pass text files instead")
    refuse("train", "--dataset", "someone/some-data", *TINY, "--output", "run", says=says)


def test_a_dataset_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    refuse("train", "--dataset", "some-data", *TINY, "--output", "run", says="pip install 'smht[train]'")


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_a_device_that_is_not_there(run: Path, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    says = (f"no '{device}' device", "--device auto")
    refuse(*TRAIN, "--device", device, says=says)
    refuse("generate", run, "a", "--device", device, says=says)
    refuse("evaluate", run, "text.txt", "--device", device, says=says)


def test_an_output_folder_that_holds_a_run(copied_run: Path) -> None:
    refuse(*TRAIN, "--output", copied_run, says=("already holds a run", f"--resume {copied_run}", "another --output"))
    (copied_run / "run.json").unlink()
    refuse(*TRAIN, "--output", copied_run, says="already holds a run")


@pytest.mark.parametrize("output", ["folder", "text.txt"])
def test_an_output_that_is_something_else(output: str) -> None:
    refuse(*TRAIN, "--output", output, says=(f"{output} exists and is not an empty folder", "another --output"))


def test_an_output_below_a_file() -> None:
    refuse(*TRAIN, "--steps", "4", "--output", "text.txt/run", says="is a file, so there can be no text.txt/run")


def test_more_warmup_than_steps() -> None:
    arguments = ("--steps", "4", "--warmup", "4", "--output", "run")
    refuse(*TRAIN, *arguments, says="warmup = 4 leaves nothing of the run's 4 steps")


def test_a_dataset_option_that_does_not_exist() -> None:
    refuse("train", "--dataset", "some/data?splt=train", says=("no option 'splt'", "did you mean split?"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--hidden-size", "32"), "hidden_size = 16, which --from cannot change to 32"),
        (("--hidden-size", "15"), "hidden_size = 15 is not a multiple of num_attention_heads = 2"),
        (("--num-hidden-layers", "2"), "num_hidden_layers = 1, which --from cannot change to 2"),
        (("--mixing", "none"), "mixing = shuffle, which --from cannot change to none"),
        (("--split", "none"), "split = ('qkv', 'output', 'feed_forward'), which --from cannot change to ()"),
        (("--split", "qvk"), "did you mean qkv?"),
        (("--tokenizer", "bpe"), "tokenizer = byte, which --from cannot change to bpe"),
        (("--vocab-size", "300"), "vocab_size = 259, which --from cannot change to 300"),
        (("--context", "17"), "16 positions, fewer than --context 17"),
        (("--preset", "smht-small"), "leave --preset out"),
    ],
)
def test_from_a_run_of_another_architecture(run: Path, arguments: tuple[str, str], says: str) -> None:
    refuse("train", "text.txt", "--from", run, *arguments, "--output", "new", says=says)


@pytest.mark.parametrize(
    ("folder", "says"), [("nowhere", "there is no run folder nowhere"), ("folder", "there is no model in folder")]
)
def test_from_what_is_no_run(folder: str, says: str) -> None:
    refuse("train", "text.txt", "--from", folder, "--output", "run", says=says)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--learning-rate", "0.1"), ("has learning_rate = 0.02", "leave learning_rate = 0.1 out")),
        (("--batch-size", "4"), "has batch_size = 2"),
        (("--seed", "1"), "has seed = 0"),
        (("--context", "8"), "has context = 16"),
        (("--hidden-size", "32"), "has hidden_size = 16"),
        (("--dropout", "0.1"), "has hidden_dropout = 0.0"),
        (("--split", "none"), "has split = ['qkv', 'output', 'feed_forward']"),
        (("--tokenizer", "bpe"), "has tokenizer = byte"),
        (("--preset", "smht-mini"), "has preset = smht-small"),
        (("--from", "other"), "begun without from_run"),
        (("other.txt",), "has texts = ['text.txt']"),
        (("--output", "elsewhere"), "leave --output out"),
    ],
)
def test_resuming_with_other_settings(copied_run: Path, arguments: tuple[str, ...], says: tuple[str, ...]) -> None:
    refuse("train", "--resume", copied_run, "--steps", "8", *arguments, says=says)


@pytest.mark.parametrize(
    ("folder", "says"),
    [
        ("nowhere", "there is no run folder nowhere"),
        ("text.txt", "there is no run folder text.txt"),
        ("folder", "folder holds no run: it has no run.json"),
    ],
)
def test_resuming_what_is_no_run(folder: str, says: str) -> None:
    refuse("train", "--resume", folder, says=says)


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        ((), ("finished its 4 steps", "--resume copy --steps N")),
        (("--steps", "4"), "has taken 4 steps already; a budget of 4 leaves nothing to do"),
        (("--steps", "3"), "a budget of 3 leaves nothing to do"),
        (("--epochs", "0.01"), "a budget of 1 leaves nothing to do"),
    ],
)
def test_resuming_a_finished_run_without_more_to_do(copied_run: Path, budget: tuple[str, ...], says: str) -> None:
    refuse("train", "--resume", copied_run, *budget, says=says)


def test_resuming_after_the_text_has_changed(copied_run: Path, run: Path) -> None:
    source = run.parent / "text.txt"
    before = source.read_bytes()
    try:
        source.write_bytes(before.replace(b"the", b"The", 1))
        refuse("train", "--resume", copied_run, "--steps", "8", says=("text of copy has changed", "--from copy"))
    finally:
        source.write_bytes(before)


def test_a_disk_that_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")(10**6, 10**6 - 1000, 1000)
    monkeypatch.setattr(files.shutil, "disk_usage", lambda path: usage)
    result = smht(*TRAIN, *FOUR_STEPS)
    last = result.err.splitlines()[-1]
    assert result.code == 2
    assert last.startswith("smht: run needs ") and "of disk and 1 kB are free" in last and "--output" in last
    assert not Path("run").exists()


@pytest.mark.parametrize(
    "flags", [("--hidden-size", "100000000"), ("--batch-size", "1000000000"), ("--num-hidden-layers", "1000000000")]
)
def test_a_model_that_no_memory_holds(flags: tuple[str, str]) -> None:
    refuse(*TRAIN, *flags, says=("need at least", "of memory, and", "take a smaller model, --batch-size or --context"))


def use_up_memory(*arguments: object) -> None:
    torch.empty(2**60)


def use_up_a_gpu(*arguments: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.mark.parametrize("fail", [use_up_memory, use_up_a_gpu])
def test_too_little_memory(monkeypatch: pytest.MonkeyPatch, fail: Callable[..., None]) -> None:
    monkeypatch.setattr(preparation, "set_seed", fail)
    refuse(*TRAIN, code=1, says=("out of memory", "to allocate", "--batch-size"))


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(preparation, "set_seed", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        smht(*TRAIN)
