"""`smht plan`."""

import math
import re
from typing import Annotated, Any

import typer

from smht.cli.architecture import with_architecture
from smht.cli.output import new_table, print_json, quieten_libraries, result_console
from smht.cli.sections import SectionedCommand, option
from smht.errors import UsageError

_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="plan", cls=SectionedCommand)(plan)


@with_architecture
def plan(
    *,
    ranks: Annotated[int, option("Ranks", "How many share the training.")],
    bandwidth: Annotated[str, option("Ranks", "Of a rank's link, like 100Mbit or 10Gbit.", default="1Gbit")] = "1Gbit",
    latency: Annotated[str, option("Ranks", "Of a message, like 50us or 0.2ms.", default="100us")] = "100us",
    flops: Annotated[
        str | None,
        option("Ranks", "What a rank reaches a second, like 50G or 100T.", default="half a product of matrices here"),
    ] = None,
    batch_size: Annotated[int, option("Training", "Windows a step, of all ranks together.", default="16")] = 16,
    preset: Annotated[
        str | None, option("Architecture", "Named architecture; `smht presets` lists them.", default="smht-small")
    ] = None,
    vocab_size: Annotated[int | None, option("Architecture", "Number of tokens V.")] = None,
    context: Annotated[int | None, option("Architecture", "Tokens of a window.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
    architecture: dict[str, Any],
) -> None:
    """Tell what several ranks hold and send in training."""
    quieten_libraries()
    from smht.inspection import plan as planning
    from smht.models import preset_config
    from smht.tasks.language_modelling import LanguageModelling

    fields = {**architecture, "vocab_size": vocab_size, "max_position_embeddings": context}
    name = preset or LanguageModelling.preset
    config = preset_config(name, **{field: value for field, value in fields.items() if value is not None})
    bits, seconds = _quantity("bandwidth", bandwidth), _quantity("latency", latency)
    speed = _quantity("flops", flops) if flops is not None else planning.measure_flops(config.hidden_size)
    link = planning.Link(bits / 8, seconds, speed)
    ways = planning.plan(config, ranks, batch_size, config.max_position_embeddings, link)
    if json:
        print_json(
            {
                "model": name,
                "config": config.to_diff_dict(),
                "ranks": ranks,
                "batch_size": batch_size,
                "context": config.max_position_embeddings,
                "bandwidth_bytes": link.bandwidth,
                "latency_seconds": link.latency,
                "flops": link.flops,
                "ways": planning.to_dict(ways),
            }
        )
        return
    _show(ways, f"{ranks} ranks, {batch_size} × {config.max_position_embeddings} tokens a step, float32", speed)


def _show(ways: list[Any], title: str, speed: float) -> None:
    from smht.training.quantities import format_size

    table = new_table("", "parameters", "memory", "sent a step", "messages", "a step takes", "computing", "")
    for column in table.columns[1:-1]:
        column.justify = "right"
    for way in ways:
        if way.is_possible:
            table.add_row(
                way.name,
                f"{way.parameters:,}",
                format_size(way.memory),
                format_size(way.bytes),
                f"{way.messages:,}",
                _seconds(way.step_seconds),
                _seconds(way.compute_seconds),
                way.note,
            )
    console = result_console()
    console.print(title, markup=False, highlight=False)
    if table.row_count:
        console.print(table)
    # Reasons are sentences, which a cell of the table would break into a word a line.
    for way in ways:
        if not way.is_possible:
            console.print(f"not by {way.name}: {way.note}", markup=False, highlight=False, soft_wrap=True)
    note = (
        f"computed, not run, for one rank; {speed / 1e9:,.3g} GFLOP/s; memory without activations; "
        "sent by the busiest rank"
    )
    console.print(note, markup=False, highlight=False, soft_wrap=True)


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"


def _quantity(name: str, text: str) -> float:
    """`100Mbit`, `0.2ms` or `50G` as a number of bits a second, seconds, or operations a second.

    Raises:
        UsageError: something else, no number above zero, or one too large; a latency may be zero.
    """
    kinds = {
        "bandwidth": (r"([kmgt]?)bit(?:/s)?", _SCALES, "100Mbit"),
        "latency": (r"(us|ms|s)", _SECONDS, "0.2ms"),
        "flops": (r"([kmgtp]?)(?:flop/?s?)?", _SCALES, "50G"),
    }
    unit, scales, example = kinds[name]
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*" + unit, text.strip(), re.IGNORECASE)
    value = float(match[1]) * scales[match[2].lower()] if match else -1.0
    if value < 0 or (value == 0 and name != "latency") or math.isinf(value):
        raise UsageError(f"{name} = {text!r}: write it like {example}")
    return value
