"""`smht generate`."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from smht.cli.output import harmless, print_json, progress_console, quieten_libraries

_MOST_BEAMS = 64


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="generate")(generate)


def generate(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    prompt: Annotated[
        str | None,
        typer.Argument(
            help="Text to go on from, or to translate line by line; standard input if - or piped in, else nothing.",
            show_default=False,
        ),
    ] = None,
    *,
    temperature: Annotated[float, typer.Option(help="Divides the logits; 0 takes the likeliest token.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="Only the K likeliest tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Only the likeliest tokens of total probability P.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="How many tokens to add.")] = 256,
    samples: Annotated[int, typer.Option(help="How many texts.")] = 1,
    beams: Annotated[
        int | None, typer.Option(help="For translation: how many beginnings to keep.", show_default="1")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the first text; the next ones count up.")] = 0,
    device: Annotated[Literal["auto", "cpu", "cuda", "mps"], typer.Option(help="Where to run.")] = "auto",
    json: Annotated[bool, typer.Option("--json", help="Print the texts as JSON.")] = False,
) -> None:
    """Let a trained model continue a text, or translate one."""
    quieten_libraries()
    from smht.errors import UsageError
    from smht.tasks.generation import Sampling
    from smht.training.device import resolve_device
    from smht.training.run_folder import RunFolder

    sampling = Sampling(temperature, top_k, top_p, max_new_tokens, seed=seed)
    if samples < 1:
        raise UsageError(f"samples = {samples} must be at least 1")
    place = resolve_device(device)
    folder = RunFolder(run)
    folder.refuse_other_tasks("generate", "language-modelling", "translation")
    tokenizer, model = folder.load_tokenizer(), folder.load_model(device=place)
    text = _read_prompt(prompt)
    if folder.task == "translation":
        _translate(model, tokenizer, text, 1 if beams is None else beams, json)
        return
    if beams is not None:
        raise UsageError("--beams is for translation runs: a language model samples")
    _continue(model, tokenizer, text, sampling, samples, json)


def _translate(model: Any, tokenizer: Any, text: bytes, beams: int, json: bool) -> None:
    """Each line's translation on a line."""
    from smht.errors import UsageError
    from smht.tasks.translation import encode_source, translate

    if not 1 <= beams <= _MOST_BEAMS:
        raise UsageError(f"beams = {beams} must be from 1 to {_MOST_BEAMS}")
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise UsageError("nothing to translate: give a sentence, or pipe in one a line")
    context = model.config.max_position_embeddings
    sources = [encode_source(tokenizer, line, f"line {number}", context) for number, line in enumerate(lines, 1)]
    translations = translate(model, tokenizer, sources, context, beams)
    if json:
        pairs = zip(lines, translations, strict=True)
        print_json([{"source": line.decode("utf-8", "replace"), "target": target} for line, target in pairs])
        return
    for translation in translations:
        print(harmless(translation))


def _continue(model: Any, tokenizer: Any, text: bytes, sampling: Any, samples: int, json: bool) -> None:
    """Texts that go on from a prompt."""
    from dataclasses import replace

    from smht.tasks.generation import encode_prompt, stream_text
    from smht.tokenization import tokenizer_kind

    if tokenizer_kind(tokenizer) != "byte":
        _check_utf8(text)
    ids = encode_prompt(tokenizer, text)
    context = model.config.max_position_embeddings
    if len(ids) > context:
        progress_console().print(
            f"the prompt has {len(ids):,} tokens and the context is {context}: going on from its last {context // 2}",
            highlight=False,
            soft_wrap=True,
        )
    texts = []
    for number in range(samples):
        pieces = stream_text(model, tokenizer, ids, replace(sampling, seed=sampling.seed + number))
        if json:
            texts.append("".join(pieces))
            continue
        _show(text, pieces, number, samples)
    if json:
        print_json({"prompt": text.decode("utf-8", "replace"), "texts": texts})


def _show(prompt: bytes, pieces: Iterator[str], number: int, samples: int) -> None:
    if samples > 1:
        print(f"--- sample {number + 1} of {samples}")
    print(harmless(prompt.decode("utf-8", "replace")), end="", flush=True)
    try:
        for piece in pieces:
            print(harmless(piece), end="", flush=True)
    finally:
        print()


def _check_utf8(prompt: bytes) -> None:
    from smht.errors import UsageError

    try:
        prompt.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"the prompt is not UTF-8 text: byte 0x{prompt[error.start]:02x} at offset {error.start}; "
            "only a run with the byte tokenizer takes any bytes"
        ) from None


def _read_prompt(prompt: str | None) -> bytes:
    """The prompt's bytes: the argument, standard input, or nothing."""
    piped_in = sys.stdin is not None and not sys.stdin.isatty()
    if prompt == "-" or (prompt is None and piped_in):
        return sys.stdin.buffer.read() if sys.stdin is not None else b""
    # An argument that was no UTF-8 reaches Python as surrogates; its bytes are what the user typed.
    return (prompt or "").encode("utf-8", "surrogateescape")
