"""What `smht compare` and `smht scaling` have alike: options, and how they tell that they were interrupted."""

import inspect
import shlex
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from smht.cli.output import progress_console
from smht.cli.sections import option
from smht.errors import UsageError

DEFAULT_VARIANTS = "split,split+shuffle,dense"

Texts = Annotated[
    list[str] | None,
    typer.Argument(
        help="Files, folders, globs or - for standard input; none for the Python standard library's source.",
        show_default=False,
    ),
]
Variants = Annotated[
    list[str] | None,
    option(
        "Comparison",
        "Names separated by commas, each of words joined by +: split or dense, then any of shuffle, head-norm, "
        "dense-output, dense-qkv, dense-feed-forward, a position encoding (learned, sinusoidal, relative, rotary, "
        "no-positions), H=8 (heads). `ladder` and `positions` are several.",
        default=DEFAULT_VARIANTS,
        metavar="NAMES",
    ),
]
Seeds = Annotated[int | None, option("Comparison", "How often to train each, with other seeds.", default="3")]
Rates = Annotated[
    int | None,
    option("Comparison", "Learning rates to try for each variant; 1 for no search.", default="5"),
]
SearchShare = Annotated[
    float | None,
    option("Comparison", "How long to try each of them, as a part of the length.", metavar="PART", default="0.2"),
]
SolveDepth = Annotated[bool, option("Comparison", "Find the number of blocks too, from 2 to 16.", "--solve-depth")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
TRAINING: dict[str, Any] = {
    "dataset": Annotated[
        str | None,
        option("Text", "A Hugging Face dataset instead of texts; options follow: NAME?config=C&split=S&column=C."),
    ],
    "validation_texts": Annotated[
        list[str] | None,
        option(
            "Text",
            "Text to evaluate on, instead of holding out a part; may be repeated.",
            "--validation",
            metavar="TEXT",
        ),
    ],
    "validation_fraction": Annotated[
        float | None, option("Text", "Part of the text to hold out.", default="0.1, at most 128 KiB")
    ],
    "errors": Annotated[
        Literal["strict", "replace"] | None,
        option("Text", "Refuse bytes that are not UTF-8, or put U+FFFD in their place.", default="strict"),
    ],
    "tokenizer": Annotated[Literal["byte", "bpe", "char"] | None, option("Text", "What a token is.", default="bpe")],
    "vocab_size": Annotated[int | None, option("Text", "Tokens of the bpe tokenizer.", default="2048")],
    "context": Annotated[int | None, option("Training", "Tokens in a window.", default="the preset's")],
    "batch_size": Annotated[int | None, option("Training", "Windows a step.", default="about 2,048 tokens")],
    "device": Annotated[
        Literal["auto", "cpu", "cuda", "mps"] | None, option("Training", "Where to train.", default="auto")
    ],
    "parametrisation": Annotated[
        Literal["standard", "mup"] | None,
        option(
            "Training",
            "mup (Maximal Update) sets first weights and rates by fan-in, so that a learning rate found at one width "
            "and number of heads serves others.",
            default="standard",
        ),
    ],
    "seed": Annotated[int | None, option("Training", "The first of the seeds.", default="0")],
    "preset": Annotated[
        str | None,
        option("Architecture", "What the variants change; `smht presets` lists them.", default="smht-small"),
    ],
}
"""Fields of `TrainRequest` that have the same option in both, by name."""


def given(**values: Any) -> dict[str, Any]:
    """What was set, with tuples for lists."""
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
        if value is not None and value != []
    }


def with_training(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the texts and the options of `TRAINING`; it receives those that were set as `training`."""

    @wraps(command)
    def wrapper(texts: list[str] | None = None, **arguments: Any) -> None:
        training = given(texts=texts, **{name: arguments.pop(name) for name in TRAINING})
        if {"validation_texts", "validation_fraction"} <= training.keys():
            raise UsageError("--validation and --validation-fraction exclude each other: give one of them")
        command(**arguments, training=training)

    call, *own = [p for p in inspect.signature(command).parameters.values() if p.name != "training"]
    texts = inspect.Parameter("texts", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=Texts)
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in TRAINING.items()
    ]
    wrapper.__signature__ = inspect.Signature([call, texts, *own, *options])  # pyright: ignore[reportAttributeAccessIssue]
    return wrapper


def stop_where_interrupted(status: str, folder: Path, command: Sequence[str]) -> None:
    """End with exit code 130, and say how to go on, where the user has pressed Ctrl-C."""
    if status != "interrupted":
        return
    progress_console().print(
        f"stopped, and saved in {folder}; go on with: {shlex.join(['smht', *command])}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    raise typer.Exit(130)
