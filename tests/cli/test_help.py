import dataclasses
import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import typer
from transformers import PreTrainedConfig

from helpers.command_line import check_error_line, smht, succeed
from smht import SmhtConfig, __version__
from smht.cli.architecture import FLAGS
from smht.cli.compare import compare
from smht.cli.comparison_options import TRAINING
from smht.cli.main import app
from smht.cli.scaling import scaling
from smht.cli.train import train
from smht.comparison.budget import LENGTHS, SIZES
from smht.comparison.variants import BASES, SETS, WORDS
from smht.errors import UsageError
from smht.models.configuration import _CHOICES
from smht.tasks import TASKS
from smht.tokenization import TOKENIZERS
from smht.training.parametrisation import PARAMETRISATIONS
from smht.training.request import DTYPES

GROUP: Any = typer.main.get_command(app)
COMMANDS = sorted(GROUP.commands)
PARAMETERS = [(name, parameter) for name in COMMANDS for parameter in GROUP.commands[name].params]

# Fields of SmhtConfig that have a flag of another name, or that no user sets on the command line.
FIELDS_WITHOUT_FLAG = {
    "vocab_size",  # --vocab-size of `summary`, the tokenizer in `train`
    "max_position_embeddings",  # --context
    "use_cache",  # generation always does
    "bos_token_id",  # the tokenizer's
    "eos_token_id",
    "pad_token_id",
    "decoder_start_token_id",
}


def run_python(code: str) -> str:
    """What a fresh process prints."""
    environment = {**os.environ, "COLUMNS": "80"}
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    return process.stdout


def test_every_command_is_there() -> None:
    assert COMMANDS == [
        "ablate",
        "attention",
        "compare",
        "dense",
        "doctor",
        "evaluate",
        "explorer",
        "generate",
        "heads",
        "plan",
        "predict",
        "presets",
        "runs",
        "scaling",
        "split",
        "summary",
        "trace",
        "train",
    ]
    out = succeed("--help").out
    for name in COMMANDS:
        assert f"\n  {name} " in out
    assert "..." not in out.partition("Commands:")[2]


def test_help_answers_in_half_a_second_without_torch() -> None:
    code = """
import resource, sys
from smht.cli.main import run
assert run(["--help"]) == 0
assert not {"torch", "transformers", "numpy", "rich"} & sys.modules.keys(), sorted(sys.modules)
usage = resource.getrusage(resource.RUSAGE_SELF)
print(usage.ru_utime + usage.ru_stime)
"""
    # CPU time, of the best of three: other work on the machine slows it down too, but not every time.
    assert min(float(run_python(code).splitlines()[-1]) for _ in range(3)) < 0.5


def test_importing_smht_is_cheap() -> None:
    code = "import smht, sys; print(smht.__version__, {'torch', 'transformers'} & sys.modules.keys())"
    assert run_python(code) == f"{__version__} set()\n"


def call_main(stdout: int) -> tuple[int, str]:
    """The exit code and the errors of `smht --help` in a process of its own, which writes to `stdout`."""
    code = "import sys; sys.argv = ['smht', '--help']; from smht.cli.main import main; main()"
    process = subprocess.run([sys.executable, "-c", code], stdout=stdout, stderr=subprocess.PIPE, text=True)
    return process.returncode, process.stderr


def test_a_closed_pipe_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert call_main(writer) == (0, "")
    finally:
        os.close(writer)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_behind_standard_output_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        code, errors = call_main(full.fileno())
    assert code == 1
    check_error_line(errors, "No space left on device")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_fits_a_terminal(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = succeed(command, "--help").out
    assert succeed(command, "-h").out == out
    assert max(map(len, out.splitlines())) <= 80
    assert "--json" in out


@functools.cache
def help_of(command: str) -> str:
    """In one line."""
    return " ".join(succeed(command, "--help").out.split())


@pytest.mark.parametrize(("command", "parameter"), PARAMETERS, ids=lambda value: getattr(value, "name", value))
def test_every_parameter_is_explained(command: str, parameter: Any) -> None:
    assert len(parameter.help) > 4
    out = help_of(command)
    for name in (*parameter.opts, *parameter.secondary_opts):
        assert f"{name} " in out.replace("...", " ")
    assert " ".join(parameter.help.split()[:3]) in out


def test_every_field_of_ours_has_a_flag() -> None:
    inherited = {field.name for field in dataclasses.fields(PreTrainedConfig)}
    fields = {field.name for field in dataclasses.fields(SmhtConfig)} - inherited
    assert fields | FIELDS_WITHOUT_FLAG == set(FLAGS) | FIELDS_WITHOUT_FLAG
    for command in ("train", "compare", "scaling", "summary"):
        assert set(FLAGS) <= {parameter.name for parameter in GROUP.commands[command].params}


def test_flags_offer_what_the_library_knows() -> None:
    for name in _CHOICES:
        with pytest.raises(UsageError) as refusal:
            SmhtConfig(**{name: "?"})
        assert str(refusal.value).endswith(f"choose from {', '.join(sorted(get_args(FLAGS[name][0])))}")
    choices = {name: get_args(get_args(hint)[0]) for name, hint in get_type_hints(train).items() if get_args(hint)}
    assert set(choices["tokenizer"]) == set(TOKENIZERS)
    assert set(choices["dtype"]) == set(DTYPES)
    assert set(choices["task"]) == set(TASKS)
    assert set(choices["parametrisation"]) == set(PARAMETRISATIONS)
    for name in ("tokenizer", "errors", "device", "parametrisation"):
        kinds, _ = get_args(TRAINING[name])
        assert get_args(get_args(kinds)[0]) == choices[name]
    for command in (compare, scaling):
        text = help_of(command.__name__).replace("- ", "-")
        for word in (*BASES, *WORDS, *SETS, *SIZES, *LENGTHS):
            assert word in text


@functools.cache
def unchanged_config() -> dict[str, Any]:
    """Of the model that `smht summary` takes without arguments."""
    return succeed("summary", "--json").json["config"]


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        (("--hidden-size", "24"), "hidden_size", 24),
        (("--num-hidden-layers", "3"), "num_hidden_layers", 3),
        (("--num-attention-heads", "2"), "num_attention_heads", 2),
        (("--intermediate-size", "20"), "intermediate_size", 20),
        (("--split", "output,qkv"), "split", ["qkv", "output"]),
        (("--split", "feed-forward"), "split", ["feed_forward"]),
        (("--split", "none"), "split", []),
        (("--mixing", "none"), "mixing", "none"),
        (("--norm-scope", "head"), "norm_scope", "head"),
        (("--projection-bias",), "projection_bias", True),
        (("--no-tie-word-embeddings",), "tie_word_embeddings", False),
        (("--hidden-act", "silu"), "hidden_act", "silu"),
        (("--layer-norm-eps", "1e-6"), "layer_norm_eps", 1e-6),
        (("--hidden-dropout", "0.25"), "hidden_dropout", 0.25),
        (("--attention-dropout", "0.5"), "attention_dropout", 0.5),
        (("--initializer-range", "0.02"), "initializer_range", 0.02),
        (("--context", "32"), "max_position_embeddings", 32),
        (("--vocab-size", "300"), "vocab_size", 300),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_a_flag_reaches_the_architecture(arguments: tuple[str, ...], field: str, value: Any) -> None:
    unchanged = unchanged_config()
    config = succeed("summary", "--json", *arguments).json["config"]
    assert config[field] == value != unchanged[field]


def test_without_arguments_there_is_help() -> None:
    result = smht()
    assert result.code == 2
    assert result.out == succeed("--help").out


def test_version() -> None:
    assert succeed("--version").out == f"smht {__version__}\n"


def test_run_as_a_module() -> None:
    command = [sys.executable, "-m", "smht", "--version"]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == f"smht {__version__}\n"
