"""`smht trace`."""

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smht.cli.output import harmless, print_json, quieten_libraries, result_console
from smht.cli.reading import load, note_if_file
from smht.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

_SHOWN_NUMBERS = 64


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="trace")(trace)


def trace(
    run: Annotated[Path | None, typer.Argument(help="Run folder; none for a preset.", show_default=False)] = None,
    text: Annotated[str | None, typer.Argument(help="What the model reads.", show_default=False)] = None,
    *,
    preset: Annotated[
        str | None, typer.Option(help="Named architecture with random weights, in place of a run.")
    ] = None,
    ids: Annotated[str | None, typer.Option(help="Token ids in place of a text: 17,52,3,88.")] = None,
    target: Annotated[
        str | None, typer.Option(help="For an encoder-decoder: what has been written so far; nothing if not given.")
    ] = None,
    step: Annotated[str | None, typer.Option(help="Only this step of the article: 0, 1, 2, 3a to 3l, 4, 5, 6.")] = None,
    layer: Annotated[int | None, typer.Option(help="Only this block, from 0.")] = None,
    head: Annotated[int | None, typer.Option(help="Only this head, from 0, where a step has heads.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of a preset's weights.", show_default="0")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print all values as JSON.")] = False,
) -> None:
    """Follow a text through a model, step by step."""
    quieten_libraries()
    from smht.inspection import trace as run_trace

    model, tokenizer = _model(run, preset, seed)
    inputs = _inputs(model, tokenizer, text, ids, target)
    heads = model.config.num_attention_heads
    if head is not None and not 0 <= head < heads:
        raise UsageError(f"there is no head {head}: they are 0 to {heads - 1}")
    steps = run_trace(model, **inputs).select(step, layer)
    if json:
        print_json([_to_json(each, head) for each in steps])
        return
    console = result_console()
    for each in steps:
        console.print(harmless(_show(each, head)), markup=False, highlight=False, soft_wrap=True)


def _model(run: Path | None, preset: str | None, seed: int | None) -> tuple[Any, Any]:
    """A run's model and tokenizer, or a preset's model with random weights and no tokenizer."""
    import torch

    from smht.models import SmhtForCausalLM, SmhtForSeq2SeqLM, SmhtModel, preset_config

    if run is not None and preset is not None:
        raise UsageError("a preset has random weights and no tokenizer: give --ids, and neither run nor text")
    if run is None and preset is None:
        raise UsageError("give a run folder or --preset, one of the two")
    if run is not None:
        if seed is not None:
            raise UsageError("--seed is for a preset's weights, and a run has its own")
        return load(run)
    assert preset is not None
    seed = seed or 0
    if not 0 <= seed < 2**64:
        raise UsageError(f"seed = {seed} must be at least 0 and below 2^64")
    config = preset_config(preset)
    torch.manual_seed(seed)
    classes: dict[str, Any] = {"decoder": SmhtForCausalLM, "encoder": SmhtModel, "encoder_decoder": SmhtForSeq2SeqLM}
    return classes[config.stack](config).eval(), None


def _inputs(model: Any, tokenizer: Any, text: str | None, ids: str | None, target: str | None) -> dict[str, Any]:
    import torch

    from smht.tasks.model_inputs import model_inputs, parse_ids

    if (text is None) == (ids is None):
        raise UsageError("give a text or --ids, one of the two")
    if text is not None and tokenizer is None:
        raise UsageError("a preset has no tokenizer: give --ids, such as 17,52,3,88")
    if text is not None:
        note_if_file(text)
        return model_inputs(model, tokenizer, text, target)
    if target is not None:
        raise UsageError("--target goes with a text, not with --ids")
    assert ids is not None
    inputs = {"input_ids": torch.tensor([parse_ids(ids, model.config.vocab_size)])}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.tensor([[model.config.decoder_start_token_id or 0]])
    return inputs


def _to_json(step: Any, head: int | None) -> dict[str, Any]:
    value = _of_head(step, head)
    return {
        "step": step.number,
        "stack": step.stack or None,
        "layer": step.layer,
        "name": step.name,
        "formula": step.formula,
        "head": head if value is not step.value else None,
        "shape": list(value.shape),
        "note": step.note or None,
        "values": value.tolist(),
    }


def _of_head(step: Any, head: int | None) -> "Tensor":
    """The value, or one head's part of it: attention weights have heads on their second axis, others on their third."""
    if head is None or step.value.dim() != 4:
        return step.value
    return step.value[:, head] if step.is_attention else step.value[:, :, head]


def _show(step: Any, head: int | None) -> str:
    value = _of_head(step, head)
    where = f" ({step.place})" if step.place else ""
    note = f"  [{step.note}]" if step.note else ""
    shape = ", ".join(str(size) for size in step.shape)
    return f"{step.number:<4} {step.name}{where}: {step.formula} → ({shape}){note}\n{_values(value, _axes(step, head))}"


def _axes(step: Any, head: int | None) -> tuple[str, ...]:
    """What the axes between the first and the last count."""
    if step.value.dim() != 4:
        return ("token",) * (step.value.dim() - 2)
    axes = ("head", "token") if step.is_attention else ("token", "head")
    return axes if head is None else ("token",)


def _values(value: "Tensor", axes: tuple[str, ...]) -> str:
    """Small tensors number by number, a line a vector; large ones as statistics."""
    if value.numel() <= _SHOWN_NUMBERS:
        form = "{:>4d}" if not value.is_floating_point() else "{:>8.4f}"
        lines = []
        for place in itertools.product(*(range(size) for size in value.shape[:-1])):
            label = ", ".join(f"{axis} {number}" for axis, number in zip(axes, place[1:], strict=True))
            lines.append(f"     {label:<16}" + " ".join(form.format(number) for number in value[place].tolist()))
        return "\n".join(lines)
    value = value.float()
    return (
        f"     {value.numel():,} numbers: mean {value.mean():.4f}, deviation {value.std():.4f}, "
        f"from {value.min():.4f} to {value.max():.4f}"
    )
