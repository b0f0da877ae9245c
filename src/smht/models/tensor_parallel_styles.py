"""How transformers' tensor parallelism treats a `SplitLinear`: cut by head. Importing this registers it.

Between the styles of a sub-layer's first and last projection a rank has the channels of its heads, as between
transformers' own `colwise` and `rowwise`, so split and dense projections go together.

Raises:
    ImportError: transformers' styles have no such interface in the version that is installed.
"""

from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from transformers.distributed.tensor_parallel import (
    ALL_PARALLEL_STYLES,  # pyright: ignore[reportPrivateImportUsage] - where 5.17 and 5.24 both have it
    TensorParallelLayer,
)

if not hasattr(TensorParallelLayer, "install_forward"):
    raise ImportError("styles of another interface")

_registry: Any = ALL_PARALLEL_STYLES


class SplitParallel(TensorParallelLayer):
    """Weight `[H, in/H, out/H]` and bias `[out]` cut along axis 0, which is by head."""

    def should_use_local_tensors(self, module: nn.Module) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Always: a head's product is within a rank."""
        return True

    def shard_param(self, module: nn.Module, param: str, mesh: DeviceMesh) -> None:
        """Replace a whole parameter by this rank's part."""
        whole = module._parameters.get(param)
        if whole is not None:
            part = distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None)
            module._parameters[param] = nn.Parameter(part, requires_grad=whole.requires_grad)


class SplitColwise(SplitParallel):
    """Takes whole hidden states, gives the channels of this rank's heads; backward, their gradients are gathered."""

    def transform_inputs_pre_forward(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: DeviceMesh
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """`[..., in]`, the same on every rank, to `[..., in/P]`."""
        return (_move(args[0], mesh, Replicate(), Shard(-1)), *args[1:]), kwargs


class SplitRowwise(SplitParallel):
    """Takes the channels of this rank's heads, gives whole hidden states, gathered."""

    def transform_output_post_forward(self, module: nn.Module, output: Tensor, mesh: DeviceMesh) -> Tensor:
        """`[..., out/P]` to `[..., out]`, the same on every rank."""
        return _move(output, mesh, Shard(-1), Replicate())


def _move(x: Tensor, mesh: DeviceMesh, given: Any, wanted: Any) -> Tensor:
    return DTensor.from_local(x, mesh, [given], run_check=False).redistribute(placements=[wanted]).to_local()


_registry.register("smht_split_colwise", SplitColwise())
_registry.register("smht_split_rowwise", SplitRowwise())
