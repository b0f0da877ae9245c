"""What tests on run folders share: a tiny finished run, and ways to spoil it."""

import json
from pathlib import Path
from typing import Any

import torch

from smht.models import SmhtConfig, SmhtForCausalLM
from smht.tokenization import build_tokenizer
from smht.training import files
from smht.training.checkpoint import write_checkpoint
from smht.training.run_folder import RunFolder

RECORD = {"status": "finished", "asked": {"texts": []}, "settings": {"steps": 5}, "data": {}, "model": {}}
"""All of a record but its results."""


def make_model(**changes: Any) -> SmhtForCausalLM:
    """A model of bytes with 16 positions, the same each time."""
    torch.manual_seed(0)
    fields = {"vocab_size": 259, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    return SmhtForCausalLM(SmhtConfig(**{**fields, "max_position_embeddings": 16, **changes}))


def write_finished_run(folder: Path, model: SmhtForCausalLM | None = None, tokenizer: Any = None) -> RunFolder:
    """A run with everything in it that a finished run has, but metrics; of bytes if not given."""
    run = RunFolder(folder)
    run.save_model(model or make_model(), tokenizer or build_tokenizer("byte", None))
    run.write_record({**RECORD, "results": {"sha256": files.sha256(folder / "model.safetensors")}})
    write_checkpoint(run.checkpoints, 5, lambda beside: (beside / "a").write_bytes(b"1"), keep=3)
    return run


def truncate(path: Path, part: float) -> None:
    """Keep a part of a file."""
    data = path.read_bytes()
    path.write_bytes(data[: int(part * len(data))])


def flip_bit(path: Path, place: float) -> None:
    """Change one bit at a part of a file's length."""
    data = bytearray(path.read_bytes())
    data[int(place * len(data))] ^= 4
    path.write_bytes(data)


def edit_json(path: Path, **changes: Any) -> None:
    """Replace values at the top of a JSON object."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
