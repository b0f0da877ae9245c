"""A run folder: the best model at its root, what was asked, what came out, and checkpoints.

```
config.json model.safetensors tokenizer.json ...   the best model by validation loss
run.json                                           what was asked, and what came out
metrics.jsonl                                      one object a logged step
checkpoints/step-000500/                           everything that resume needs
tensorboard/                                       if TensorBoard is installed
```
"""

import errno
import fcntl
import json
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from torch import nn

from smht.errors import SmhtError, UsageError, first_line
from smht.tokenization import tokenizer_kind
from smht.training import files
from smht.training.checkpoint import find_checkpoint

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from smht.models import SmhtConfig, SmhtPreTrainedModel

WEIGHTS = "model.safetensors"
HEADS = ("lm_head.weight", "score.weight")
"""What is made anew when a model is to do another task."""
_COLUMNS = {"step", "tokens", "seconds", "loss", "validation_loss", "learning_rate"}
TOKENIZER = "tokenizer.json"
CONFIG = "config.json"

_RECORD = {"status": str, "asked": dict, "settings": dict, "data": dict, "model": dict, "results": dict}
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class RunFolder:
    """The files of one run.

    Args:
        path: the folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.record_path = self.path / "run.json"
        self.metrics_path = self.path / "metrics.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.tensorboard = self.path / "tensorboard"

    @property
    def holds_a_run(self) -> bool:
        """Whether there is a run, whole or not."""
        return self.record_path.exists() or (self.path / WEIGHTS).exists() or self.checkpoints.exists()

    def refuse_if_taken(self) -> None:
        """Keep a new run from overwriting anything.

        Raises:
            UsageError: the folder holds a run or other files, or is a file.
        """
        if self.holds_a_run:
            raise UsageError(
                f"{self.path} already holds a run: go on with it by smht train --resume {shlex.quote(str(self.path))}, "
                "or name another --output"
            )
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise UsageError(f"{self.path} exists and is not an empty folder: name another --output")
        for parent in self.path.absolute().parents:
            if parent.exists() and not parent.is_dir():
                raise UsageError(f"{parent} is a file, so there can be no {self.path}: name another --output")

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Keep other processes from making the same run, or another in the same place, for as long as it is made.

        Raises:
            UsageError: one was quicker.
        """
        parent = self.path.absolute().parent
        parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            self.refuse_if_taken()
            yield
        finally:
            os.close(folder)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training the same run; a killed process leaves no lock behind.

        Raises:
            UsageError: one is at it.
        """
        folder = os.open(self.checkpoints, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise UsageError(f"{self.path} is being trained by another process: wait for it, or stop it") from None
        finally:
            os.close(folder)

    def read_record(self) -> dict[str, Any]:
        """What `run.json` says.

        Raises:
            UsageError: the folder is missing, holds no run, or the file is damaged.
        """
        self._check_there()
        try:
            record = json.loads(self.record_path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UsageError(f"{self.path} holds no run: it has no run.json") from None
        except (ValueError, OSError) as error:
            raise UsageError(f"{self.record_path} is damaged: {first_line(error)}") from None
        if not isinstance(record, dict) or not all(isinstance(record.get(k), t) for k, t in _RECORD.items()):
            raise UsageError(f"{self.record_path} is damaged: it is no record of a run")
        return record

    def write_record(self, record: dict[str, Any]) -> None:
        """Replace `run.json`.

        Raises:
            SmhtError: the disk is full or cannot be written; the old file is untouched.
        """
        with writing(str(self.record_path)):
            files.write_json(self.record_path, record)

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Add a line to `metrics.jsonl`.

        Raises:
            SmhtError: the disk is full or cannot be written; the line may be there in part.
        """
        with writing(str(self.metrics_path)), self.metrics_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """The rows of `metrics.jsonl`; a last line that was cut short is left out."""
        try:
            lines = self.metrics_path.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return []
        rows = []
        for line in lines:
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict) and row.keys() >= _COLUMNS and isinstance(row["step"], int):
                rows.append(row)
        return rows

    def cut_metrics(self, step: int) -> list[dict[str, Any]]:
        """Keep only rows up to `step`, and return them.

        Raises:
            SmhtError: the disk is full or cannot be written; the old file is untouched.
        """
        rows = [row for row in self.read_metrics() if row["step"] <= step]
        with writing(str(self.metrics_path)):
            files.write_bytes(self.metrics_path, "".join(json.dumps(row) + "\n" for row in rows).encode())
        return rows

    def save_model(self, model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerFast | None" = None) -> None:
        """Put a model, and its tokenizer, at the root; each file is replaced at once, or none where saving fails."""
        beside = self.path / ".model.partial"
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        try:
            model.save_pretrained(beside)
            if tokenizer is not None:
                tokenizer.save_pretrained(beside)
            files.move_files(beside, self.path)
        except BaseException:
            shutil.rmtree(beside, ignore_errors=True)
            raise

    @property
    def task(self) -> str:
        """What the run's model was trained for, by its class where there is no whole `run.json`."""
        try:
            return self.read_record()["task"]
        except (UsageError, KeyError):
            by_class = {"SmhtForSeq2SeqLM": "translation", "SmhtForSequenceClassification": "classification"}
            return by_class.get((self.load_config().architectures or [""])[0], "language-modelling")

    def refuse_other_tasks(self, command: str, *tasks: str) -> None:
        """Keep a command from models that it is not for.

        Raises:
            UsageError: there is no run, or one for another task.
        """
        self._check_there()
        task = self.task
        if task not in tasks:
            instead = {"translation": "generate", "classification": "predict", "language-modelling": "generate"}[task]
            raise UsageError(
                f"{self.path} is a {task} run, and `smht {command}` is for {' and '.join(tasks)}: "
                f"use `smht {instead} {self.path}`"
            )

    def load_tokenizer(self) -> "PreTrainedTokenizerFast":
        """The run's tokenizer.

        Raises:
            UsageError: its files are missing, damaged, or not smht's.
        """
        self._check_there()
        if not (self.path / TOKENIZER).exists():
            raise UsageError(f"there is no tokenizer in {self.path}: {TOKENIZER} is missing")
        if (config := self.path / CONFIG).exists():
            _read_model_type(config)  # transformers reads it too, and would blame the tokenizer
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(self.path, local_files_only=True)
        except Exception as error:  # tokenizers raises plain Exception on a damaged file
            raise UsageError(f"the tokenizer in {self.path} cannot be read: {first_line(error)}") from None
        tokenizer_kind(tokenizer)
        return tokenizer

    def load_config(self) -> "SmhtConfig":
        """The run's architecture.

        Raises:
            UsageError: `config.json` is missing, damaged, or describes another kind of model.
        """
        from smht.models import SmhtConfig

        path = self.path / CONFIG
        model_type = _read_model_type(path)
        if model_type != SmhtConfig.model_type:
            raise UsageError(f"{self.path} holds a model of type {model_type!r}, not one of smht's")
        try:
            return SmhtConfig.from_pretrained(self.path)
        except Exception as error:  # huggingface_hub wraps a refusal in a class of its own
            raise UsageError(f"{path} is damaged: {first_line(error)}") from None

    def load_model(
        self,
        model_class: "type[SmhtPreTrainedModel] | None" = None,
        device: str = "cpu",
        changes: Mapping[str, Any] | None = None,
    ) -> Any:
        """The best model of the run, in evaluation mode.

        Args:
            model_class: to load it as, with a fresh head where it was saved as another class or with other labels;
                its own class if not given.
            device: where to.
            changes: fields of the configuration to replace, such as dropout or labels.

        Raises:
            UsageError: the folder holds no model of smht, its files are missing or damaged, or the class cannot be
                made of it.
        """
        self.check_model()
        config = self.load_config()
        own_class = _class_of(config, self.path)
        model_class = model_class or own_class
        has_same_head = model_class is own_class and _labels(config, {}) == _labels(config, changes or {})
        fresh = () if has_same_head else HEADS
        for name, value in (changes or {}).items():
            setattr(config, name, value)
        try:
            loaded: Any = model_class.from_pretrained(
                self.path,
                config=config,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # refused below, in a line that names the weight
                local_files_only=True,
            )
        except Exception as error:  # safetensors, huggingface_hub and torch each have classes of their own
            raise UsageError(f"the model in {self.path} cannot be read: {first_line(error)}") from None
        model, report = loaded
        mismatched = [name for name, *_ in report["mismatched_keys"]]
        wrong = sorted({*report["missing_keys"], *report["unexpected_keys"], *mismatched} - set(fresh))
        if wrong:
            raise UsageError(f"{self.path / WEIGHTS} does not fit config.json beside it: see {wrong[0]}")
        if fresh and hasattr(model, "score"):
            model.score.reset_parameters()
        nn.Module.to(model, device)
        return model

    def check_model(self) -> None:
        """Make sure that there is a model, and that its weights are those that were written.

        Raises:
            UsageError: there is none, or it is damaged.
        """
        self._check_there()
        self._check_weights()

    def _check_there(self) -> None:
        if not self.path.is_dir():
            raise UsageError(f"there is no run folder {self.path}; `smht runs` lists the runs below a folder")

    def _check_weights(self) -> None:
        weights = self.path / WEIGHTS
        if weights.is_dir():
            raise UsageError(f"{weights} is damaged: it is a folder")
        if not weights.exists():
            if find_checkpoint(self.checkpoints).newest_good is None and not self.record_path.exists():
                raise UsageError(f"there is no model in {self.path}")
            raise UsageError(
                f"{self.path} has no {WEIGHTS} yet: the run was stopped before its first evaluation, "
                f"or the file was deleted; go on with `smht train --resume {self.path}`"
            )
        record = self.read_record() if self.record_path.exists() else {}
        expected = record.get("results", {}).get("sha256") if record.get("status") == "finished" else None
        if expected is not None and files.sha256(weights) != expected:
            raise UsageError(
                f"{weights} is damaged: its contents are not those that were written; "
                "the checkpoints beside it are checked on their own"
            )


def _class_of(config: "SmhtConfig", path: Path) -> "type[SmhtPreTrainedModel]":
    from smht import models

    name = (config.architectures or ["nothing"])[0]
    found = getattr(models, name, None)
    if not isinstance(found, type) or not issubclass(found, models.SmhtPreTrainedModel):
        raise UsageError(f"{path / CONFIG} names the class {name!r}, which is not one of smht's models")
    return found


def _labels(config: "SmhtConfig", changes: Mapping[str, Any]) -> Any:
    return changes.get("id2label", config.id2label)


def find_best(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The row of metrics with the lowest validation loss, the first of equals; None if there is none."""
    evaluated = [row for row in rows if row.get("validation_loss") is not None]
    return min(evaluated, key=lambda row: row["validation_loss"], default=None)


@contextmanager
def writing(what: str, advice: str = "free some space, then --resume the run") -> Iterator[None]:
    """Turn a disk's refusal into one line for the user.

    Args:
        what: could not be written.
        advice: what to do about a full disk.

    Raises:
        SmhtError: the disk is full or cannot be written.
    """
    try:
        yield
    # safetensors and torch.save have errors of their own for a full disk.
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)
        may_be_full = not isinstance(error, OSError) or error.errno in _FULL_DISK
        what_to_do = f"; {advice}" if may_be_full else ""
        raise SmhtError(f"{what} could not be written: {reason}{what_to_do}") from error


def _read_model_type(path: Path) -> str:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        return str(config["model_type"])
    except FileNotFoundError:
        raise UsageError(f"{path} is missing") from None
    except (ValueError, KeyError, TypeError, OSError):
        raise UsageError(f"{path} is damaged: it is no configuration of a model") from None
