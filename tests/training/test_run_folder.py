import errno
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from helpers.errors import refused
from smht.errors import SmhtError
from smht.models import SmhtConfig, SmhtForCausalLM
from smht.tokenization import build_tokenizer, tokenizer_kind
from smht.training import files
from smht.training.checkpoint import write_checkpoint
from smht.training.run_folder import RunFolder, writing

RECORD = {"status": "finished", "asked": {"texts": []}, "settings": {"steps": 5}, "data": {}, "model": {}}


def make_model(**changes: Any) -> SmhtForCausalLM:
    torch.manual_seed(0)
    fields = {"vocab_size": 259, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    return SmhtForCausalLM(SmhtConfig(**{**fields, "max_position_embeddings": 16, **changes}))


@pytest.fixture(scope="module")
def model() -> SmhtForCausalLM:
    return make_model()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, model: SmhtForCausalLM) -> Path:
    run = RunFolder(tmp_path_factory.mktemp("finished"))
    run.save_model(model, build_tokenizer("byte", None))
    run.write_record({**RECORD, "results": {"sha256": files.sha256(run.path / "model.safetensors")}})
    write_checkpoint(run.checkpoints, 5, lambda folder: (folder / "a").write_bytes(b"1"), keep=3)
    return run.path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> RunFolder:
    """A run of one's own to spoil."""
    return RunFolder(shutil.copytree(finished, tmp_path / "run"))


def truncate(path: Path, part: float) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(part * len(data))])


def flip_bit(path: Path, place: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(place * len(data))] ^= 4
    path.write_bytes(data)


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


# New folders


def test_a_folder_that_is_not_there_or_empty_is_free(tmp_path: Path) -> None:
    RunFolder(tmp_path).refuse_if_taken()
    RunFolder(tmp_path / "new").refuse_if_taken()
    assert not RunFolder(tmp_path / "new").holds_a_run


def test_a_run_is_not_overwritten(run: RunFolder) -> None:
    assert run.holds_a_run
    with refused("already holds a run", f"--resume {run.path}"):
        run.refuse_if_taken()


@pytest.mark.parametrize("left", ["run.json", "model.safetensors", "checkpoints"])
def test_nor_is_what_is_left_of_one(run: RunFolder, left: str) -> None:
    for path in run.path.iterdir():
        if path.name != left:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    with refused("already holds a run"):
        run.refuse_if_taken()


def test_nor_are_other_files(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("")
    with refused("not an empty folder", "--output"):
        RunFolder(tmp_path).refuse_if_taken()
    with refused("not an empty folder", "--output"):
        RunFolder(tmp_path / "thesis.txt").refuse_if_taken()


# run.json


def test_a_record_comes_back(tmp_path: Path) -> None:
    record = {**RECORD, "results": {"loss": 1.5}, "more": ["é"]}
    RunFolder(tmp_path).write_record(record)
    assert RunFolder(tmp_path).read_record() == record


def test_a_missing_folder_or_record_is_named(tmp_path: Path) -> None:
    with refused(f"no run folder {tmp_path / 'nope'}", "smht runs"):
        RunFolder(tmp_path / "nope").read_record()
    with refused(str(tmp_path), "no run.json"):
        RunFolder(tmp_path).read_record()


@pytest.mark.parametrize("part", [0, 0.1, 0.5, 0.98])
def test_a_record_cut_short_is_damaged(run: RunFolder, part: float) -> None:
    truncate(run.record_path, part)
    with refused("run.json is damaged"):
        run.read_record()


@pytest.mark.parametrize("data", [b"\xff\xfe\0", b"[]", b"null", b"3", b"{}", b'"status asked settings"', b"[" * 9])
def test_what_is_no_record_is_damaged(run: RunFolder, data: bytes) -> None:
    run.record_path.write_bytes(data)
    with refused("run.json is damaged"):
        run.read_record()


@pytest.mark.parametrize("name", ["status", "asked", "settings", "data", "model", "results"])
@pytest.mark.parametrize("value", [None, 5, []])
def test_a_record_with_a_part_missing_or_of_another_kind_is_damaged(run: RunFolder, name: str, value: Any) -> None:
    edit_json(run.record_path, **{name: value})
    with refused("run.json is damaged", "no record of a run"):
        run.read_record()
    with refused("run.json is damaged"):
        run.load_model()
    record = json.loads(run.record_path.read_text())
    del record[name]
    run.record_path.write_text(json.dumps(record))
    with refused("run.json is damaged"):
        run.read_record()


def test_a_folder_in_the_place_of_the_record_is_damage(tmp_path: Path) -> None:
    (tmp_path / "run.json").mkdir()
    with refused("run.json is damaged"):
        RunFolder(tmp_path).read_record()


# metrics.jsonl


def rows(*steps: int) -> list[dict[str, Any]]:
    return [{"step": step, "loss": 1 / step, "validation_loss": None} for step in steps]


def with_rows(folder: Path, *steps: int) -> RunFolder:
    run = RunFolder(folder)
    for row in rows(*steps):
        run.append_metrics(row)
    return run


def test_rows_come_back_in_order(tmp_path: Path) -> None:
    assert RunFolder(tmp_path).read_metrics() == []
    assert with_rows(tmp_path, 1, 2, 3).read_metrics() == rows(1, 2, 3)


def test_a_last_row_cut_short_at_any_length_is_left_out(tmp_path: Path) -> None:
    run = with_rows(tmp_path, 1, 2, 3)
    whole = run.metrics_path.read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for length in range(last, len(whole) - 1):
        run.metrics_path.write_bytes(whole[:length])
        assert run.read_metrics() == rows(1, 2)
    run.metrics_path.write_bytes(whole[:-1])
    assert run.read_metrics() == rows(1, 2, 3)


def test_going_on_after_a_torn_row_loses_no_other(tmp_path: Path) -> None:
    run = with_rows(tmp_path, 1, 2, 3)
    truncate(run.metrics_path, 0.95)
    assert run.cut_metrics(10) == rows(1, 2)
    run.append_metrics(rows(3)[0])
    assert run.read_metrics() == rows(1, 2, 3)


@pytest.mark.parametrize("line", [b"\xff\xfe", b"[1]", b"7", b"{}", b'{"step": "3"}', b""])
def test_lines_that_are_no_rows_are_left_out(tmp_path: Path, line: bytes) -> None:
    run = with_rows(tmp_path, 1)
    with run.metrics_path.open("ab") as file:
        file.write(line + b"\n")
    run.append_metrics(rows(2)[0])
    assert run.read_metrics() == rows(1, 2)


def test_rows_after_the_step_to_go_back_to_are_cut(tmp_path: Path) -> None:
    run = with_rows(tmp_path, 1, 2, 3, 4)
    assert run.cut_metrics(2) == rows(1, 2)
    assert run.read_metrics() == rows(1, 2)
    assert run.cut_metrics(0) == []
    assert RunFolder(tmp_path).read_metrics() == []


# The model


def test_what_was_saved_is_loaded(run: RunFolder, model: SmhtForCausalLM) -> None:
    loaded = run.load_model()
    assert not loaded.training
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in loaded.state_dict().items())
    assert run.load_config().to_dict()["hidden_size"] == 8
    assert tokenizer_kind(run.load_tokenizer()) == "byte"


def test_saving_again_replaces_each_file_and_leaves_nothing_beside(run: RunFolder) -> None:
    before = {path.name for path in run.path.iterdir()}
    other = make_model(initializer_range=0.5)
    run.save_model(other)
    assert {path.name for path in run.path.iterdir()} == before
    weights = load_file(run.path / "model.safetensors")
    assert torch.equal(weights["lm_head.weight"], other.lm_head.weight)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), SafetensorError("full"), KeyboardInterrupt()])
def test_a_failure_while_saving_leaves_the_old_model_and_nothing_else(
    run: RunFolder, model: SmhtForCausalLM, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}

    def fail(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise error

    monkeypatch.setattr(model, "save_pretrained", fail)
    with pytest.raises(type(error)):
        run.save_model(model)
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before
    assert not (run.path / ".model.partial").exists()


def test_what_a_crash_left_beside_is_not_mixed_in(run: RunFolder, model: SmhtForCausalLM) -> None:
    (run.path / ".model.partial").mkdir()
    (run.path / ".model.partial/stale.bin").write_bytes(b"1")
    run.save_model(model)
    assert not (run.path / "stale.bin").exists()
    assert not (run.path / ".model.partial").exists()


@pytest.mark.parametrize("part", [0, 0.0005, 0.02, 0.5, 0.9999])
@pytest.mark.parametrize("status", ["finished", "running"])
def test_weights_cut_short_are_refused(run: RunFolder, part: float, status: str) -> None:
    edit_json(run.record_path, status=status)
    truncate(run.path / "model.safetensors", part)
    with refused("damaged" if status == "finished" else "cannot be read", str(run.path)):
        run.load_model()


@pytest.mark.parametrize("place", [0, 0.001, 0.3, 0.999])
def test_a_flipped_bit_in_the_weights_of_a_finished_run_is_refused(run: RunFolder, place: float) -> None:
    flip_bit(run.path / "model.safetensors", place)
    with refused("model.safetensors is damaged"):
        run.load_model()


def test_a_model_that_was_replaced_since_is_refused_too(run: RunFolder) -> None:
    run.save_model(make_model(initializer_range=0.5))
    with refused("model.safetensors is damaged"):
        run.load_model()


def test_missing_weights_are_explained(run: RunFolder, tmp_path: Path) -> None:
    (run.path / "model.safetensors").unlink()
    with refused("no model.safetensors yet", f"--resume {run.path}"):
        run.load_model()
    with refused(f"no model in {tmp_path}"):
        RunFolder(tmp_path).load_model()


def test_a_missing_folder_is_never_looked_for_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    missing = RunFolder("runs/nope")
    for load in (missing.load_model, missing.load_tokenizer):
        with refused("no run folder runs/nope"):
            load()
    with refused("config.json is missing"):
        missing.load_config()


def test_a_model_without_a_run_loads(run: RunFolder) -> None:
    run.record_path.unlink()
    assert isinstance(run.load_model(), SmhtForCausalLM)


@pytest.mark.parametrize("data", [b"", b"\xff\0", b"{", b"[]", b"null", b"{}", b'"model_type"'])
def test_a_damaged_configuration_is_refused(run: RunFolder, data: bytes) -> None:
    (run.path / "config.json").write_bytes(data)
    for load in (run.load_config, run.load_model):
        with refused("config.json is damaged"):
            load()


def test_a_configuration_cut_short_is_refused(run: RunFolder) -> None:
    truncate(run.path / "config.json", 0.5)
    with refused("config.json is damaged"):
        run.load_model()


@pytest.mark.parametrize("model_type", ["gpt2", "", None])
def test_another_kind_of_model_is_refused(run: RunFolder, model_type: str | None) -> None:
    edit_json(run.path / "config.json", model_type=model_type)
    with refused(repr(str(model_type)), str(run.path)):
        run.load_model()


@pytest.mark.parametrize(
    ("changes", "needle"),
    [
        ({"hidden_size": 9}, "hidden_size = 9"),
        ({"hidden_size": "wide"}, "hidden_size"),
        ({"split": None}, "split"),
        ({"split": ["all"]}, "split"),
        ({"mixing": "stir"}, "mixing"),
        ({"hidden_act": "sine"}, "hidden_act"),
    ],
)
def test_a_configuration_of_no_model_is_refused_by_field(run: RunFolder, changes: dict[str, Any], needle: str) -> None:
    edit_json(run.path / "config.json", **changes)
    with refused("config.json is damaged", needle):
        run.load_model()


@pytest.mark.parametrize(
    ("changes", "needle"),
    [
        ({"hidden_size": 16}, "lm_head.weight"),
        ({"vocab_size": 300}, "lm_head.weight"),
        ({"num_hidden_layers": 2}, "model.layers.1."),
        ({"split": []}, "model.layers.0."),
        ({"projection_bias": True}, "bias"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_weights_of_another_architecture_are_refused_by_name(
    run: RunFolder, changes: dict[str, Any], needle: str
) -> None:
    edit_json(run.path / "config.json", **changes)
    with refused("does not fit config.json", needle):
        run.load_model()


@pytest.mark.parametrize("change", ["missing", "more"])
def test_weights_that_are_missing_or_too_many_are_refused_by_name(run: RunFolder, change: str) -> None:
    path = run.path / "model.safetensors"
    weights = load_file(path)
    if change == "missing":
        del weights["model.norm.weight"]
    else:
        weights["model.norm.gain"] = torch.zeros(3)
    save_file(weights, path, metadata={"format": "pt"})
    run.record_path.unlink()
    with refused("does not fit config.json", "model.norm.weight" if change == "missing" else "model.norm.gain"):
        run.load_model()


# The tokenizer


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("spoil", [lambda p: truncate(p, 0), lambda p: truncate(p, 0.5), lambda p: p.write_text("[]")])
def test_a_damaged_tokenizer_is_refused(run: RunFolder, name: str, spoil: Callable[[Path], Any]) -> None:
    spoil(run.path / name)
    with refused(f"the tokenizer in {run.path} cannot be read"):
        run.load_tokenizer()


def test_a_missing_tokenizer_is_refused(run: RunFolder) -> None:
    (run.path / "tokenizer.json").unlink()
    with refused("no tokenizer", "tokenizer.json is missing"):
        run.load_tokenizer()


def test_a_tokenizer_without_its_kind_is_refused(run: RunFolder) -> None:
    (run.path / "tokenizer_config.json").unlink()
    with refused("was not built by smht", "tokenizer_config.json"):
        run.load_tokenizer()


# A disk that refuses


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "/x/y"),
            "the model could not be written: No space left on device; free some space, then --resume the run",
        ),
        (
            SafetensorError("I/O error: No space left\nmore"),
            "the model could not be written: I/O error: No space left; free some space, then --resume the run",
        ),
        (
            RuntimeError("enforce fail at inline_container"),
            "the model could not be written: enforce fail at inline_container; free some space, then --resume the run",
        ),
        (OSError(errno.EROFS, "Read-only file system"), "the model could not be written: Read-only file system"),
        (OSError("odd"), "the model could not be written: odd"),
    ],
)
def test_a_refusal_becomes_one_line(error: Exception, line: str) -> None:
    with pytest.raises(SmhtError) as caught, writing("the model"):
        raise error
    assert str(caught.value) == line
    assert type(caught.value) is SmhtError
    assert caught.value.__cause__ is error


def test_other_errors_pass() -> None:
    for error in (KeyError("bug"), KeyboardInterrupt(), SmhtError("said already")):
        with pytest.raises(type(error)) as caught, writing("the model"):
            raise error
        assert caught.value is error


def test_records_and_metrics_say_so_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really_open = Path.open

    def full(self: Path, mode: str = "r", **kwargs: Any) -> Any:
        if "r" not in mode:
            raise OSError(errno.ENOSPC, "No space left on device")
        return really_open(self, mode, **kwargs)

    run = with_rows(tmp_path, 1)
    run.write_record(RECORD)
    before = run.record_path.read_bytes()
    monkeypatch.setattr(Path, "open", full)
    with refused("run.json could not be written", "No space", kind=SmhtError):
        run.write_record({**RECORD, "status": "failed"})
    for write in (lambda: run.append_metrics({"step": 2}), lambda: run.cut_metrics(1)):
        with refused("metrics.jsonl could not be written", "No space", kind=SmhtError):
            write()
    monkeypatch.undo()
    assert run.record_path.read_bytes() == before
    assert run.read_metrics() == rows(1)


FULL_DISK = """
import resource, sys
import torch
from smht.errors import SmhtError
from smht.models import SmhtConfig, SmhtForCausalLM
from smht.training.checkpoint import write_checkpoint
from smht.training.run_folder import RunFolder, writing

run = RunFolder(sys.argv[1])
model = SmhtForCausalLM(SmhtConfig(vocab_size=259, hidden_size=32, num_hidden_layers=1))
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

def save_model():
    with writing("the best model"):
        run.save_model(model)

def save_optimizer():
    with writing("the checkpoint"):
        write_checkpoint(run.checkpoints, 6, lambda folder: torch.save(model.state_dict(), folder / "a.pt"), keep=1)

def append():
    for step in range(100_000):
        run.append_metrics({"step": step, "loss": 1.0})

for write in (save_model, save_optimizer, append):
    try:
        write()
    except SmhtError as error:
        print(error)
"""


@pytest.mark.slow
def test_a_real_limit_is_reported_and_spoils_nothing(run: RunFolder) -> None:
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    done = subprocess.run([sys.executable, "-c", FULL_DISK, run.path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert [line.split(" could not be written: ")[0] for line in lines] == [
        "the best model",
        "the checkpoint",
        str(run.metrics_path),
    ]
    assert run.read_metrics()[-1]["step"] == len(run.read_metrics()) - 1
    run.metrics_path.unlink()
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before
    assert not list(run.path.rglob("*.partial"))
