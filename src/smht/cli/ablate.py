"""`smht ablate`."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from smht.cli.ablation_data import label_names, many_texts, one_text
from smht.cli.ablation_output import json_of_text, json_of_texts, table_of_texts, tables_of_text
from smht.cli.head_edits import read_edits, read_parts
from smht.cli.output import harmless, print_json, progress_console, quieten_libraries, result_console
from smht.cli.reading import load, note_if_file
from smht.errors import UsageError

_MOST = 50


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="ablate")(ablate)


def ablate(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    texts: Annotated[
        list[str],
        typer.Argument(metavar="TEXT...", help="What the model reads; with --files, where many texts are."),
    ],
    *,
    drop: Annotated[
        str | None,
        typer.Option(help="Heads that write nothing: 0.2,1.3 for layer.head; 2 alone: chunk 2 from end to end."),
    ] = None,
    freeze: Annotated[str | None, typer.Option(help="Heads held at the mean of what they write: 0.2,1.3.")] = None,
    swap: Annotated[
        str | None, typer.Option(help="Heads of a layer that write in each other's place: 0.1:0.3.")
    ] = None,
    swap_weights: Annotated[
        str | None, typer.Option(help="Heads that compute with each other's weights: 0.1:1.3.")
    ] = None,
    parts: Annotated[
        str | None,
        typer.Option(help="Only attention, cross-attention or feed-forward of the heads; all they have if not given."),
    ] = None,
    statistics: Annotated[
        Literal["live", "held"],
        typer.Option(help="Means and variances in the norms: of the edited run, or of the unedited one."),
    ] = "live",
    rank: Annotated[bool, typer.Option("--rank", help="Drop every head alone and rank them by loss.")] = False,
    files: Annotated[
        bool,
        typer.Option(
            "--files",
            help="Measure over files, folders, globs or - for standard input: texts, pairs or labelled texts, as "
            "`smht evaluate` takes them (windows of a language model a token shorter than there).",
        ),
    ] = False,
    most: Annotated[
        int | None,
        typer.Option(help="With --files: at most so many windows, pairs or labelled texts.", show_default="50"),
    ] = None,
    target: Annotated[str | None, typer.Option(help="For an encoder-decoder: the text whose loss is measured.")] = None,
    label: Annotated[str | None, typer.Option(help="For a classifier: the label whose loss is measured.")] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Show the loss of each token too.")] = False,
    generate: Annotated[
        int | None, typer.Option(help="Let both models go on for so many tokens, the likeliest each time.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Drop, freeze or swap heads, and see what changes."""
    quieten_libraries()
    from smht.training.run_folder import RunFolder

    chosen = read_parts(parts)
    edits = read_edits(drop, freeze, swap, swap_weights, chosen)
    if rank and (edits or tokens or generate is not None):
        raise UsageError("--rank drops each head alone: give it without other edits, --tokens and --generate")
    if not rank and not edits:
        raise UsageError("name heads to --drop, --freeze, --swap or --swap-weights, or --rank them all")
    _check_texts(texts, files, most, of_one_text=(target, label, tokens or None, generate))
    model, tokenizer = load(run)
    if files:
        data = many_texts(RunFolder(run).task, model, tokenizer, texts, _MOST if most is None else most)
    else:
        note_if_file(texts[0], ": say --files for that")
        data = [one_text(model, tokenizer, texts[0], target, label)]
    if rank:
        _rank(model, data, statistics, chosen, json)
    elif files:
        _ablate_over(model, data, edits, statistics, json)
    else:
        _ablate(model, tokenizer, data[0], edits, statistics, tokens, generate, json)


def _check_texts(texts: Sequence[str], files: bool, most: int | None, of_one_text: Sequence[Any]) -> None:
    """Refuse options that do not go with one text, or with many."""
    if files:
        if any(option is not None for option in of_one_text):
            raise UsageError("--target, --label, --tokens and --generate are for one text, and --files for many")
        if most is not None and most < 1:
            raise UsageError(f"most = {most} must be at least 1")
    elif len(texts) > 1:
        raise UsageError(
            f"{len(texts)} texts were given: quote a text that has spaces, or say --files where they are files"
        )
    elif most is not None:
        raise UsageError("--most is for the texts of --files")


def _rank(
    model: Any, data: Sequence[dict[str, Any]], statistics: str, parts: tuple[str, ...] | None, json: bool
) -> None:
    from smht.inspection import rank_heads_over

    if hasattr(model, "score") and "labels" not in data[0]:
        raise UsageError("heads are ranked by the loss of the right label: give it with --label")
    ranking = rank_heads_over(model, data, statistics, parts=parts, track=_bar("heads"))
    if json:
        print_json(asdict(ranking))
        return
    for table in ranking.tables():
        result_console().print(table.to_rich())


def _ablate_over(model: Any, data: Sequence[dict[str, Any]], edits: Sequence[Any], statistics: str, json: bool) -> None:
    from smht.inspection import ablate_over

    together = ablate_over(model, edits, data, statistics, track=_bar("texts"))
    alone = [together]
    if len(edits) > 1:
        alone = [ablate_over(model, [edit], data, statistics, track=_bar("texts")) for edit in edits]
    if json:
        print_json(json_of_texts(together, alone, len(data)))
    else:
        result_console().print(table_of_texts(together, alone).to_rich())


def _ablate(
    model: Any,
    tokenizer: Any,
    inputs: dict[str, Any],
    edits: Sequence[Any],
    statistics: str,
    tokens: bool,
    generate: int | None,
    json: bool,
) -> None:
    from smht.inspection import ablate as run_ablation
    from smht.inspection.display import visible
    from smht.tasks.model_inputs import token_names

    labels = label_names(model) if hasattr(model, "score") else None
    if labels is not None and (tokens or generate is not None):
        raise UsageError("--tokens and --generate are for models that write, and a classifier writes nothing")
    together = run_ablation(model, edits, statistics, **inputs)
    alone = [run_ablation(model, [edit], statistics, **inputs) for edit in edits] if len(edits) > 1 else [together]
    targets = None if labels is not None else together.targets
    names = [] if targets is None else token_names(tokenizer, targets[0][: together.count].tolist())
    texts: list[str] = []
    if generate is not None:
        _check_length(model, inputs, generate)
        texts = [_go_on(model, tokenizer, inputs, some, statistics, generate) for some in ((), edits)]
    if json:
        written = dict(zip(("text_before", "text_after"), texts, strict=False))
        print_json({**json_of_text(together, alone, names, labels), **written})
        return
    shown = tables_of_text(together, alone, None if labels is None else [harmless(label) for label in labels])
    if tokens:
        shown.append(together.token_table([harmless(visible(name)) for name in names]))
    for place, table in enumerate(shown):
        result_console().print(*([""] * bool(place)), table.to_rich(), sep="\n")
    for name, continuation in zip(("before", "after"), texts, strict=False):
        print(f"--- text {name}")
        print(harmless(continuation))


def _bar(of: str) -> Any:
    """Draws a bar where there is a terminal."""
    from rich.progress import track

    console = progress_console()
    return partial(track, description=of, console=console, transient=True, disable=not console.is_terminal)


def _check_length(model: Any, inputs: dict[str, Any], count: int) -> None:
    """The last token written is not read again, so it needs no position."""
    read = 1 if model.config.is_encoder_decoder else inputs["input_ids"].shape[1]
    most = model.config.max_position_embeddings - read + 1
    if not 1 <= count <= most:
        raise UsageError(f"generate = {count} must be from 1 to {most}, what the context has room for after the text")


def _go_on(
    model: Any, tokenizer: Any, inputs: dict[str, Any], edits: Sequence[Any], statistics: str, count: int
) -> str:
    """The text and what the model makes of it, or the translation."""
    from smht.inspection import edited_heads
    from smht.tokenization import BOS_ID, EOS_ID, PAD_ID, decode_bytes

    never = [i for i in tokenizer.all_special_ids if i != EOS_ID]
    with edited_heads(model, edits, statistics, inputs):
        written = model.generate(
            inputs["input_ids"],
            max_new_tokens=count,
            do_sample=False,
            use_cache=False,  # held statistics take the whole text in each call
            suppress_tokens=never,
            bos_token_id=BOS_ID,
            eos_token_id=EOS_ID,
            pad_token_id=PAD_ID,
        )[0].tolist()
    return decode_bytes(tokenizer, written).decode("utf-8", "replace")
