"""`smht predict`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from smht.cli.output import harmless, new_table, print_json, quieten_libraries, result_console

if TYPE_CHECKING:
    from torch import Tensor


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="predict")(predict)


def predict(
    run: Annotated[Path, typer.Argument(help="Run folder of a classification run.")],
    texts: Annotated[
        list[str] | None,
        typer.Argument(help="Texts to label; without any, each line of standard input is one.", show_default=False),
    ] = None,
    *,
    device: Annotated[Literal["auto", "cpu", "cuda", "mps"], typer.Option(help="Where to run.")] = "auto",
    json: Annotated[bool, typer.Option("--json", help="Print labels and probabilities as JSON.")] = False,
) -> None:
    """Label texts with a trained classifier."""
    quieten_libraries()
    from smht.errors import UsageError
    from smht.tasks.classification import classify, encode_text
    from smht.training.device import resolve_device
    from smht.training.run_folder import RunFolder

    place = resolve_device(device)
    folder = RunFolder(run)
    folder.refuse_other_tasks("predict", "classification")
    given = _texts(texts)
    if not given:
        raise UsageError("no texts were given: name some, or pipe them in, one a line")
    tokenizer = folder.load_tokenizer()
    model = folder.load_model(device=place)
    context = model.config.max_position_embeddings
    rows = [encode_text(tokenizer, text, f"text {number}") for number, text in enumerate(given, 1)]
    probabilities = classify(model, [row[:context] for row in rows]).softmax(-1)
    names = [model.config.id2label[number] for number in range(model.config.num_labels)]
    cut = [len(row) > context for row in rows]
    _show([text.decode("utf-8", "replace") for text in given], probabilities, names, cut, json)


def _texts(arguments: list[str] | None) -> list[bytes]:
    """Arguments, or the lines of standard input that are not blank."""
    if arguments:
        return [text.encode("utf-8", "surrogateescape") for text in arguments]
    if sys.stdin is None or sys.stdin.isatty():
        return []
    return [line for line in sys.stdin.buffer.read().splitlines() if line.strip()]


def _show(texts: list[str], probabilities: "Tensor", names: list[str], cut: list[bool], json: bool) -> None:
    found = [
        {
            "text": text,
            "label": names[int(row.argmax())],
            "probabilities": dict(zip(names, row.tolist(), strict=True)),
            "is_cut": is_cut,
        }
        for text, row, is_cut in zip(texts, probabilities, cut, strict=True)
    ]
    if json:
        print_json(found)
        return
    from rich.text import Text

    table = new_table("label", "probability", "text")
    for result in found:
        probability = result["probabilities"][result["label"]]
        note = " (its end was not read)" if result["is_cut"] else ""
        text = Text(harmless(" ".join(result["text"].split())) + note, overflow="ellipsis", no_wrap=True)
        table.add_row(Text(result["label"]), f"{probability:.1%}", text)
    result_console().print(table)
