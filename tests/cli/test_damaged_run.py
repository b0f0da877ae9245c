"""Runs that were damaged, or that something went wrong in."""

import errno
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel

from helpers.command_line import FOUR_STEPS, TINY, check_error_line, refuse, smht, succeed
from smht.training import files
from smht.training.checkpoint import find_damage


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x40
    path.write_bytes(data)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def fill_with_noise(path: Path) -> None:
    path.write_bytes(bytes(b ^ 0xA5 for b in path.read_bytes()))


def become_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: list[Callable[[Path], None]] = [Path.unlink, truncate, empty, fill_with_noise]
GENERATE = ("generate", "copy", "a", "--max-new-tokens", "2")
EVALUATE, SUMMARY = ("evaluate", "copy", "text.txt"), ("summary", "copy")
RESUME = ("train", "--resume", "copy", "--steps", "5")
FROM = ("train", "text.txt", "--from", "copy", "--output", "new")


@pytest.mark.parametrize("damage", [*DAMAGES, become_a_folder])
@pytest.mark.parametrize(
    ("name", "commands"),
    [
        ("config.json", (GENERATE, EVALUATE, SUMMARY, RESUME, FROM)),
        ("model.safetensors", (GENERATE, EVALUATE, FROM)),
        ("tokenizer.json", (GENERATE, EVALUATE, RESUME, FROM)),
        ("run.json", (RESUME,)),
    ],
)
def test_a_damaged_file_is_named(
    copied_run: Path, damage: Callable[[Path], None], name: str, commands: tuple[tuple[str, ...], ...]
) -> None:
    damage(copied_run / name)
    for command in commands:
        line = refuse(*command, says="copy")
        assert name in line or (name == "tokenizer.json" and "the tokenizer in copy cannot be read" in line)
        assert name == "tokenizer.json" or "tokenizer" not in line


def test_one_bit_of_the_weights(copied_run: Path) -> None:
    flip_a_bit(copied_run / "model.safetensors")
    for command in (GENERATE, EVALUATE, FROM):
        refuse(*command, says="copy/model.safetensors is damaged")


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["generation_config.json", "modeling.py", "configuration.py", "metrics.jsonl"])
def test_what_the_commands_do_not_need(copied_run: Path, damage: Callable[[Path], None], name: str) -> None:
    damage(copied_run / name)
    for command in (GENERATE, EVALUATE, SUMMARY):
        succeed(*command)


@pytest.mark.parametrize("damage", [*DAMAGES, flip_a_bit])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    copied_run: Path, damage: Callable[[Path], None]
) -> None:
    damage(copied_run / "checkpoints/step-000004/model.safetensors")
    result = succeed(*RESUME, "--json")
    assert result.err.startswith("warning: checkpoint step-000004/model.safetensors is ")
    assert "going on after step 2" in result.err
    assert result.json["steps"] == 5


def test_weights_of_another_model(copied_run: Path, train) -> None:
    train("--num-hidden-layers", "2", "--output", "other")
    (copied_run / "model.safetensors").write_bytes(Path("other/model.safetensors").read_bytes())
    for command in (GENERATE, EVALUATE, FROM):
        refuse(*command, says="copy/model.safetensors")
    (copied_run / "run.json").unlink()  # without the hash in it
    for command in (GENERATE, EVALUATE, FROM):
        refuse(*command, says=("does not fit config.json", "layers.1."))


def test_a_model_of_another_kind() -> None:
    GPT2LMHeadModel(GPT2Config(vocab_size=8, n_embd=4, n_layer=1, n_head=2, n_positions=8)).save_pretrained("copy")
    for command in (GENERATE, EVALUATE, SUMMARY, FROM):
        refuse(*command, says="copy holds a model of type 'gpt2'")
    refuse(*RESUME, says="copy holds no run")


def test_a_run_that_was_stopped_before_its_first_evaluation(copied_run: Path) -> None:
    (copied_run / "model.safetensors").unlink()
    refuse(*GENERATE, says=("no model.safetensors yet", "smht train --resume copy"))


def test_a_full_disk_during_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    sync = files.sync_file

    def fill_the_disk(path: Path) -> None:
        if ".step-000004" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(path)

    with monkeypatch.context() as patches:
        patches.setattr(files, "sync_file", fill_the_disk)
        result = smht("train", "text.txt", *TINY, *FOUR_STEPS, "--output", "run")
    assert (result.code, result.out) == (1, "")
    check_error_line(result.err.splitlines(keepends=True)[-1], ("step 4", "No space left on device", "--resume"))
    assert json.loads(Path("run/run.json").read_text())["status"] == "failed"
    checkpoints = Path("run/checkpoints")
    assert [path.name for path in checkpoints.iterdir()] == ["step-000002"]
    assert find_damage(checkpoints / "step-000002") is None
    assert succeed("train", "--resume", "run", "--json").json["status"] == "finished"


def weights_below(run: Path) -> list[torch.Tensor]:
    return [weight for path in run.rglob("*.safetensors") for weight in load_file(path).values()]


def test_a_loss_that_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    result = smht("train", "text.txt", *TINY, *FOUR_STEPS, "--learning-rate", "1e30", "--output", "run")
    assert (result.code, result.out) == (1, "")
    says = ("nan at step 2", "saved in run/checkpoints", "--learning-rate below 1e+30")
    check_error_line(result.err.splitlines(keepends=True)[-1], says)
    assert json.loads(Path("run/run.json").read_text())["status"] == "failed"
    (checkpoint,) = Path("run/checkpoints").iterdir()
    assert checkpoint.name == "step-000001"
    assert find_damage(checkpoint) is None
    assert all(weight.isfinite().all() for weight in weights_below(Path("run")))


def test_a_validation_loss_that_is_no_number_is_not_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("--learning-rate", "1e30", "--evaluate-every", "1")
    result = smht("train", "text.txt", *TINY, *FOUR_STEPS, *arguments, "--output", "run")
    assert result.code == 1
    check_error_line(result.err.splitlines(keepends=True)[-1], "nan at step")
    refuse("generate", "run", "a", says="no model.safetensors")
