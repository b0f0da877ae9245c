from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.errors import refused
from helpers.runs import edit_json, flip_bit, make_model, truncate
from smht.models import SmhtForCausalLM
from smht.tokenization import tokenizer_kind
from smht.training.run_folder import RunFolder

# The model


def test_what_was_saved_is_loaded(run: RunFolder) -> None:
    loaded, model = run.load_model(), make_model()
    assert not loaded.training
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in loaded.state_dict().items())
    assert run.load_config().to_dict()["hidden_size"] == 8
    assert tokenizer_kind(run.load_tokenizer()) == "byte"


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
