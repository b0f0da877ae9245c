"""Options that `smht compare` and `smht scaling` have alike."""

from typing import Annotated, Any, Literal

import typer

from smht.cli.sections import option

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
SolveDepth = Annotated[bool, option("Comparison", "Find the number of blocks too, from 2 to 16.", "--solve-depth")]
Dataset = Annotated[
    str | None,
    option("Text", "A Hugging Face dataset instead of texts; options follow: NAME?config=C&split=S&column=C."),
]
Validation = Annotated[
    list[str] | None,
    option("Text", "Text to evaluate on, instead of holding out a part; may be repeated.", metavar="TEXT"),
]
ValidationFraction = Annotated[
    float | None, option("Text", "Part of the text to hold out.", default="0.1, at most 128 KiB")
]
Errors = Annotated[
    Literal["strict", "replace"] | None,
    option("Text", "Refuse bytes that are not UTF-8, or put U+FFFD in their place.", default="strict"),
]
Tokenizer = Annotated[Literal["byte", "bpe", "char"] | None, option("Text", "What a token is.", default="bpe")]
VocabSize = Annotated[int | None, option("Text", "Tokens of the bpe tokenizer.", default="2048")]
Context = Annotated[int | None, option("Training", "Tokens in a window.", default="the preset's")]
BatchSize = Annotated[int | None, option("Training", "Windows a step.", default="about 2,048 tokens")]
Device = Annotated[Literal["auto", "cpu", "cuda", "mps"] | None, option("Training", "Where to train.", default="auto")]
Parametrisation = Annotated[
    Literal["standard", "mup"] | None,
    option(
        "Training",
        "mup (Maximal Update) sets first weights and rates by fan-in, so that a learning rate found at one width and "
        "number of heads serves others.",
        default="standard",
    ),
]
Seed = Annotated[int | None, option("Training", "The first of the seeds.", default="0")]
Preset = Annotated[
    str | None,
    option("Architecture", "What the variants change; `smht presets` lists them.", default="smht-small"),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def given(**values: Any) -> dict[str, Any]:
    """What was set, with tuples for lists."""
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
        if value is not None and value != []
    }
