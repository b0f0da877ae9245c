"""`smht ablate`."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from smht.cli.head_edits import read_edits, read_parts
from smht.cli.output import harmless, print_json, progress_console, quieten_libraries, result_console
from smht.cli.reading import load
from smht.errors import UsageError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="ablate")(ablate)


def ablate(
    run: Annotated[Path, typer.Argument(help="Run folder of a language model or a translator.")],
    text: Annotated[str, typer.Argument(help="What the model reads.")],
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
    target: Annotated[str | None, typer.Option(help="For an encoder-decoder: the text whose loss is measured.")] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Show the loss of each token too.")] = False,
    generate: Annotated[
        int | None, typer.Option(help="Let both models go on for so many tokens, the likeliest each time.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Drop, freeze or swap heads, and see loss and text change."""
    quieten_libraries()
    from smht.training.run_folder import RunFolder

    chosen = read_parts(parts)
    edits = read_edits(drop, freeze, swap, swap_weights, chosen)
    if rank and (edits or tokens or generate is not None):
        raise UsageError("--rank drops each head alone: give it without other edits, --tokens and --generate")
    if not rank and not edits:
        raise UsageError("name heads to --drop, --freeze, --swap or --swap-weights, or --rank them all")
    RunFolder(run).refuse_other_tasks("ablate", "language-modelling", "translation")
    model, tokenizer = load(run)
    inputs = _inputs(model, tokenizer, text, target)
    if rank:
        _rank(model, inputs, statistics, chosen, json)
        return
    _ablate(model, tokenizer, inputs, edits, statistics, tokens, generate, json)


def _inputs(model: Any, tokenizer: Any, text: str, target: str | None) -> dict[str, Any]:
    """What the forward takes; a target with the end token that it should get."""
    import torch

    from smht.tasks.model_inputs import model_inputs
    from smht.tokenization import EOS_ID

    inputs = model_inputs(model, tokenizer, text, target)
    if target:
        written = inputs["decoder_input_ids"]
        inputs["labels"] = torch.cat([written[:, 1:], torch.full_like(written[:, :1], EOS_ID)], 1)
    elif model.config.is_encoder_decoder:
        raise UsageError("give a --target: the loss of an encoder-decoder is that of what it should write")
    return inputs


def _rank(model: Any, inputs: dict[str, Any], statistics: str, parts: tuple[str, ...] | None, json: bool) -> None:
    from rich.progress import track

    from smht.inspection import rank_heads

    console = progress_console()
    bar = partial(track, description="heads", console=console, transient=True, disable=not console.is_terminal)
    ranking = rank_heads(model, statistics, parts=parts, track=bar, **inputs)
    if json:
        print_json(asdict(ranking))
        return
    for table in ranking.tables():
        result_console().print(table.to_rich())


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

    together = run_ablation(model, edits, statistics, **inputs)
    alone = [run_ablation(model, [edit], statistics, **inputs) for edit in edits] if len(edits) > 1 else [together]
    targets = together.targets[0][: together.count].tolist()  # pyright: ignore[reportOptionalSubscript]
    names = token_names(tokenizer, targets)
    texts: list[str] = []
    if generate is not None:
        _check_length(model, inputs, generate)
        texts = [_go_on(model, tokenizer, inputs, some, statistics, generate) for some in ((), edits)]
    if json:
        print_json(_as_json(together, alone, names, texts))
        return
    console = result_console()
    console.print(_table(together, alone).to_rich())
    if tokens:
        console.print()
        console.print(together.token_table([harmless(visible(name)) for name in names]).to_rich())
    for name, continuation in zip(("before", "after"), texts, strict=False):
        print(f"--- text {name}")
        print(harmless(continuation))


def _table(together: Any, alone: Sequence[Any]) -> Any:
    """A line an edit, and one for all of them."""
    from smht.inspection.ablation import describe
    from smht.inspection.display import Table, signed

    rows = [(result.descriptions[0], result) for result in alone]
    if len(alone) > 1:
        rows.append(("all together", together))
    return Table(
        (f"nats, mean of {together.count:,}", "before", "after", "change"),
        tuple((name, f"{one.loss_before:.4f}", f"{one.loss_after:.4f}", signed(one.loss_change)) for name, one in rows),
        note=describe(together.statistics, together.parts),
    )


def _as_json(together: Any, alone: Sequence[Any], names: list[str], texts: list[str]) -> dict[str, Any]:
    losses = (together.losses_before[0].tolist(), together.losses_after[0].tolist())
    found = {
        "statistics": together.statistics,
        "parts": together.parts,
        "targets": together.count,
        **_losses(together),
        "edits": [{"edit": one.descriptions[0], **_losses(one)} for one in alone],
        "tokens": [
            {"token": name, "loss_before": before, "loss_after": after}
            for name, before, after in zip(names, *losses, strict=False)
        ],
    }
    return {**found, **dict(zip(("text_before", "text_after"), texts, strict=False))}


def _losses(result: Any) -> dict[str, float]:
    return {"loss_before": result.loss_before, "loss_after": result.loss_after, "change": result.loss_change}


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
