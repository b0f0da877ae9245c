"""What a model that transformers' tensor parallelism has cut computes, beside the whole model in the same process."""

from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers.distributed.configuration_utils import DistributedConfig

from helpers.head_parallel import make_batch, relative_error, tiny_config
from smht import SmhtForCausalLM
from smht.distributed.ranks import Ranks
from smht.errors import UsageError


def save(folder: Path, changes: dict[str, Any]) -> None:
    """A model with weights, norms and biases included, that are all different; float64."""
    torch.manual_seed(1)
    model = SmhtForCausalLM(tiny_config(**changes)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)


def load_part(folder: str, ranks: Ranks) -> SmhtForCausalLM:
    options = {"dtype": torch.float64, "distributed_config": DistributedConfig(tp_size=ranks.size)}
    return SmhtForCausalLM.from_pretrained(folder, **options)


def errors_of_a_step(ranks: Ranks, folder: str) -> tuple[dict[str, float], int, list[Any]]:
    """Relative errors of logits, loss and gradients; how many parameters are cut; what both generate by cache."""
    whole = SmhtForCausalLM.from_pretrained(folder, dtype=torch.float64)
    part = load_part(folder, ranks)
    batch = make_batch(whole.config, seed=2)
    outputs = [model(**batch) for model in (whole, part)]
    for each in outputs:
        each.loss.backward()
    errors = {name: relative_error(outputs[0][name], outputs[1][name]) for name in ("loss", "logits")}
    largest = max(float(parameter.grad.abs().max()) for parameter in whole.parameters() if parameter.grad is not None)
    cut = 0
    for (name, parameter), own in zip(whole.named_parameters(), part.parameters(), strict=True):
        cut += isinstance(own, DTensor) and own.to_local().numel() < own.numel()
        found = own.grad.full_tensor() if isinstance(own.grad, DTensor) else own.grad
        errors[name] = relative_error(parameter.grad, found, 1e-4 * largest)
    errors["saved and loaded whole"] = saved_error(part, whole, folder, ranks)
    prompt = torch.tensor([[1, 2, 3], [4, 5, 6]])
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    generated = [
        [model.eval().generate(prompt, cache_implementation=kind, **options).tolist() for kind in (None, "static")]
        for model in (whole, part)
    ]
    return errors, cut, generated


def saved_error(part: SmhtForCausalLM, whole: SmhtForCausalLM, folder: str, ranks: Ranks) -> float:
    """The largest difference of a weight after the ranks saved what they share."""
    saved = Path(folder) / "saved"
    part.save_pretrained(saved)
    ranks.collect(torch.zeros(1))  # rank 0 has written
    loaded = SmhtForCausalLM.from_pretrained(saved, dtype=torch.float64)
    pairs = zip(whole.parameters(), loaded.parameters(), strict=True)
    return max(relative_error(left.detach(), right.detach()) for left, right in pairs)


def refusal(ranks: Ranks, folder: str) -> str:
    """What is said of a model that cannot be cut."""
    try:
        load_part(folder, ranks)
    except UsageError as error:
        return str(error)
    raise AssertionError("it was cut")
