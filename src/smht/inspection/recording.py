"""What modules were given and what they returned in one forward pass, by hooks; the model's code stays as it is."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from smht.models import SmhtPreTrainedModel


@dataclass(frozen=True)
class Call:
    """One call of a module: its first tensor argument, what it returned, and attention weights where it gave some."""

    input: Tensor
    output: Tensor
    weights: Tensor | None = None


class Recording(dict[str, Call]):
    """The last call of each module by the module's name."""

    def keep(self, name: str, arguments: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:
        """Note a call; those without tensors are left out."""
        given = next((value for value in (*arguments, *options.values()) if isinstance(value, Tensor)), None)
        first = output[0] if isinstance(output, tuple) else output
        weights = output[1] if isinstance(output, tuple) and len(output) > 1 else None
        if given is not None and isinstance(first, Tensor):
            self[name] = Call(given.detach(), first.detach(), None if weights is None else weights.detach())


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """`model` in evaluation mode while the context lasts; then each of its modules in the mode that it had."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, was_training in modes.items():
            module.training = was_training


@contextmanager
def recording(model: SmhtPreTrainedModel) -> Iterator[Recording]:
    """Record every module of `model` while the context lasts.

    Hooked projections take the composed path, and attention is written out so that its weights are there. What the
    model returns is bitwise what it returns on the composed path with `attn_implementation="eager"` unrecorded.
    """
    record = Recording()
    implementation = model.config._attn_implementation
    with ExitStack() as stack:
        for name, module in model.named_modules():
            handle = module.register_forward_hook(_hook(record, name), with_kwargs=True)
            stack.callback(handle.remove)
        stack.callback(_set_implementation, model, implementation)
        _set_implementation(model, "eager")
        yield record


def _hook(record: Recording, name: str) -> Any:
    def keep(module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:
        record.keep(name, arguments, options, output)

    return keep


def _set_implementation(model: SmhtPreTrainedModel, name: str | None) -> None:
    for module in model.modules():
        if isinstance(module, SmhtPreTrainedModel):
            module.config._attn_implementation = name
