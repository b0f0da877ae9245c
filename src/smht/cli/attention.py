"""`smht attention`."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from smht.cli.output import print_json, quieten_libraries
from smht.cli.reading import load, note_if_file
from smht.errors import UsageError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="attention")(attention)


def attention(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    text: Annotated[str, typer.Argument(help="What the model reads.")],
    *,
    output: Annotated[Path, typer.Option(help="Picture to write: .png, .svg or .pdf.")] = Path("attention.png"),
    layer: Annotated[int | None, typer.Option(help="A block, from 0; with --head, one map with tokens.")] = None,
    head: Annotated[int | None, typer.Option(help="A head, from 0.")] = None,
    kind: Annotated[
        Literal["self", "encoder", "cross"] | None,
        typer.Option(help="Of an encoder-decoder: whose attention.", show_default="self; encoder without --target"),
    ] = None,
    target: Annotated[str | None, typer.Option(help="For an encoder-decoder: what has been written so far.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the weights as JSON instead of drawing them.")] = False,
) -> None:
    """Draw who attends to whom, for one head or all of them."""
    quieten_libraries()
    from smht.inspection.attention_figures import check_picture
    from smht.inspection.attention_maps import attention_maps
    from smht.tasks.model_inputs import model_inputs, token_names

    if output.exists() and not json:
        raise UsageError(f"{output} is there already: name another --output")
    if not json:
        check_picture(output)
    if head is not None and layer is None:
        raise UsageError("--head needs --layer, since each block has heads of its own")
    note_if_file(text)
    model, tokenizer = load(run)
    inputs = model_inputs(model, tokenizer, text, target)
    if kind is None:
        # A decoder that has written nothing attends to its first token alone.
        kind = "encoder" if model.config.is_encoder_decoder and target is None else "self"
    weights = attention_maps(model, **inputs).of(kind, layer, head)
    sides = {"self": ("decoder_input_ids",) * 2, "encoder": ("input_ids",) * 2}
    if not model.config.is_encoder_decoder:
        sides["self"] = ("input_ids",) * 2
    sides["cross"] = ("decoder_input_ids", "input_ids")
    queries, keys = (token_names(tokenizer, inputs[side][0].tolist()) for side in sides[kind])
    if json:
        print_json(
            {"kind": kind, "layer": layer, "head": head, "queries": queries, "keys": keys, "weights": weights.tolist()}
        )
        return
    _draw(weights, queries, keys, layer, head, f"{kind} attention, {run.resolve().name}", output)


def _draw(
    weights: Any,
    queries: list[str],
    keys: list[str],
    layer: int | None,
    head: int | None,
    title: str,
    output: Path,
) -> None:
    from smht.inspection.attention_figures import draw_grid, draw_map, save_figure

    if head is not None:
        figure = draw_map(weights, queries, keys, f"layer {layer}, head {head}, {title}")
    else:
        figure = draw_grid(weights if layer is None else weights[None], title)
    save_figure(figure, output)
    print(output)
