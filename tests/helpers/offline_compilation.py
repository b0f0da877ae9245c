"""Compiling Triton kernels for GPUs that are not here, with the arguments that ops would launch them with."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

_TYPES = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.uint8: "*u8",
    torch.int64: "*i64",
}
_OPTIONS = ("num_warps", "num_stages")


@dataclass(frozen=True)
class Launch:
    """A kernel with all of its arguments, and its options."""

    kernel: JITFunction
    arguments: dict[str, Any]
    options: dict[str, int]

    def compile(self, capability: int) -> Any:
        """The kernel's machine code for a compute capability such as 90."""
        signature, constants, attributes = {}, {}, {}
        for parameter in self.kernel.params:
            name, place, value = parameter.name, (parameter.num,), self.arguments[parameter.name]
            if isinstance(value, Tensor):
                signature[name] = _TYPES[value.dtype]
            elif parameter.is_constexpr or value == 1:
                signature[name], constants[place] = "constexpr", value
                continue
            else:
                signature[name] = "fp32" if isinstance(value, float) else "i32"
            if isinstance(value, Tensor) or (isinstance(value, int) and value % 16 == 0):
                attributes[place] = [["tt.divisibility", 16]]
        source = ASTSource(self.kernel, signature, constants, attributes)
        return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=self.options)


def launches_of(work: Callable[[], object], monkeypatch: pytest.MonkeyPatch, choice: int) -> list[Launch]:
    """The launches of `work`, which are recorded and not run, each with this one of its tile sizes."""
    recorded: list[Launch] = []

    def record(kernel: JITFunction, *given: Any, grid: Any, warmup: bool, **more: Any) -> None:
        options = {name: more.pop(name) for name in _OPTIONS if name in more}
        names = (parameter.name for parameter in kernel.params)
        arguments = {**dict(zip(names, given, strict=False)), **more}
        arguments = {parameter.name: arguments[parameter.name] for parameter in kernel.params}
        recorded.append(Launch(kernel, arguments, options))

    def choose(tuner: Autotuner, *given: Any, **more: Any) -> None:
        chosen = tuner.configs[choice]
        tuner.fn.run(
            *given, **{**more, **chosen.kwargs, "num_warps": chosen.num_warps, "num_stages": chosen.num_stages}
        )

    with monkeypatch.context() as patch:
        patch.setattr(JITFunction, "run", record)
        patch.setattr(Autotuner, "run", choose)
        work()
    return recorded
