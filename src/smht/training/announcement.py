"""What a run is about to do and what it will take, told before it begins."""

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from smht.distributed.mesh import Mesh
from smht.errors import UsageError
from smht.ops import explain
from smht.training import files
from smht.training.calibration import Calibration
from smht.training.parametrisation import STANDARD
from smht.training.preparation import Prepared
from smht.training.quantities import format_duration, format_size
from smht.training.run_folder import RunFolder

if TYPE_CHECKING:
    from smht.models import SmhtConfig


def announce(
    prepared: Prepared, costs: Calibration, run: RunFolder, console: Console, first_step: int, mesh: Mesh | None = None
) -> None:
    """Print text, model, budget, learning rate, who shares what, and the time, memory and disk to expect."""
    settings, examples = prepared.settings, prepared.examples
    items = settings.steps * settings.batch_size
    tokens, passes = round(items * examples.tokens_per_item), items / examples.items_per_epoch
    going_on = f"; going on after step {first_step:,}" if first_step else ""
    lines = {
        "text": prepared.data.describe(examples.token_counts[0]),
        "model": f"{prepared.model.num_parameters():,} parameters: {describe_architecture(prepared.model.config)}",
        "budget": f"{settings.steps:,} steps of {examples.describe_batch(settings.batch_size)}: "
        f"{tokens:,} tokens, {passes:,.2f} passes over the text{going_on}",
        "rate": f"{settings.learning_rate:g} at its peak, {settings.warmup} steps of warmup, then a cosine to a tenth"
        f"{'' if settings.parametrisation == STANDARD else f'; {settings.parametrisation} parametrisation'}",
        "expect": f"about {format_duration(_expected_seconds(prepared, costs, first_step))}, "
        f"{format_size(costs.memory_bytes)} of memory, {format_size(disk_bytes(prepared))} of disk; "
        f"on {settings.device} in {settings.dtype}{_kernels(prepared)}",
        **_sharing(prepared, mesh or Mesh()),
        "run": str(run.path),
        **({"note": examples.note} if examples.note else {}),
    }
    for name, line in lines.items():
        console.print(Text.assemble((f"{name:<7}", "bold"), " ", line), soft_wrap=True)


def _sharing(prepared: Prepared, mesh: Mesh) -> dict[str, str]:
    """What each of several processes has, if there are several."""
    if mesh.size == 1:
        return {}
    parts = []
    if mesh.batch_shares > 1:
        parts.append(f"1/{mesh.batch_shares} of every batch")
    if mesh.shard > 1:
        parts.append(f"1/{mesh.shard} of every parameter")
    if mesh.head > 1:
        heads = prepared.model.config.num_attention_heads
        parts.append(f"{heads // mesh.head} of the {heads} heads")
    return {"ranks": f"{mesh.size}, each with {' and '.join(parts)}"}


def _kernels(prepared: Prepared) -> str:
    """What computes the split projections, on devices for which there are kernels."""
    backend = {"cpu": "cpu", "cuda": "gpu"}.get(prepared.settings.device)
    if backend is None or not prepared.model.config.split:
        return ""
    choice = explain()[0]
    return ", with smht's kernels" if backend in choice.backends else f", in plain PyTorch ({choice.why_not[backend]})"


def describe_architecture(config: "SmhtConfig") -> str:
    """One line about a model."""
    split = ", ".join(config.split) if config.split else "nothing (dense)"
    blocks, heads = config.num_hidden_layers, config.num_attention_heads
    size = f"{blocks} {'block' if blocks == 1 else 'blocks'}"
    if config.stack == "encoder":
        size = f"an encoder of {size}"
    elif config.stack == "encoder_decoder":
        size = f"an encoder of {blocks} and a decoder of {config.num_decoder_layers} blocks"
    parts = [
        f"{size} of width {config.hidden_size}",
        f"{heads} {'head' if heads == 1 else 'heads'}",
        f"split: {split}",
    ]
    parts += [f"{config.mixing} mixing"] if config.mixing != "none" else []
    parts += ["a norm a head"] if config.norm_scope == "head" else []
    parts += ["norms after the sums"] if config.norm_placement == "post" else []
    parts += [f"{config.position_embedding} positions"] if config.position_embedding != "learned" else []
    parts += [f"blocks of {config.sparse_block_size} in attention"] if config.sparse_block_size else []
    parts += ["tied embeddings"] if config.tie_word_embeddings else []
    return ", ".join(parts)


def check_disk(prepared: Prepared, run: RunFolder) -> None:
    """Refuse a run that the disk cannot hold.

    Raises:
        UsageError: less is free than the run's folder will grow to.
    """
    free, needed = files.free_bytes(run.path), disk_bytes(prepared)
    if free < needed:
        raise UsageError(
            f"{run.path} needs {format_size(needed)} of disk and {format_size(free)} are free: free some space, "
            "name another --output, or --keep-checkpoints fewer"
        )


def disk_bytes(prepared: Prepared) -> int:
    """What a run's folder grows to: weights at the root, and weights with two moments in each checkpoint."""
    weights = 4 * prepared.model.num_parameters()
    checkpoints = prepared.settings.keep_checkpoints + 1  # one more while the newest is written
    return 2 * weights + checkpoints * (3 * weights + 200_000)


def _expected_seconds(prepared: Prepared, costs: Calibration, first_step: int) -> float:
    steps = prepared.settings.steps - first_step
    evaluations = -(-steps // (prepared.settings.evaluate_every or steps))
    return max(1.0, steps * costs.step_seconds + evaluations * costs.evaluation_seconds)
