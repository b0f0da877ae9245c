"""Pictures of a finished run, where matplotlib is installed: `RUN/plots/`."""

from pathlib import Path
from typing import Any

from smht.tasks.task import Examples, Task


def draw_plots(folder: Path, rows: list[dict[str, Any]], task: Task, examples: Examples, model: Any) -> list[Path]:
    """Draw the learning curve and the task's own pictures.

    Args:
        folder: where to; made if need be.
        rows: the run's metrics.
        task: the run's.
        examples: what it was trained on.
        model: its best.

    Returns:
        The pictures; none where matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return []
    figures: dict[str, Any] = {"learning-curve": _learning_curve(Figure, rows, task)}
    figures |= examples.figures(model, Figure)
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{name}.png" for name in figures]
    for path, figure in zip(paths, figures.values(), strict=True):
        figure.savefig(path, dpi=120)
    return paths


def _learning_curve(new_figure: Any, rows: list[dict[str, Any]], task: Task) -> Any:
    """Training and validation loss by step, and under them the task's first metric."""
    figure = new_figure(figsize=(7, 5.5), layout="constrained")
    losses, metrics = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    evaluated = [row for row in rows if row["validation_loss"] is not None]
    steps = [row["step"] for row in evaluated]
    losses.plot([row["step"] for row in rows], [row["loss"] for row in rows], color="C7", label="training")
    losses.plot(steps, [row["validation_loss"] for row in evaluated], color="C0", marker="o", label="validation")
    losses.set_ylabel(f"loss, {task.loss_unit}")
    losses.legend()
    metric = task.metrics[0]
    metrics.plot(steps, [row[metric.name] for row in evaluated], color="C2", marker="o")
    metrics.set_ylabel(metric.label)
    metrics.set_xlabel("step")
    for panel in (losses, metrics):
        panel.grid(alpha=0.3)
    return figure
