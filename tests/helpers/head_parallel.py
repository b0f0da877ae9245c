"""What the ranks of a head-parallel model compute, beside the whole model in the same process."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from helpers.hugging_face import enable_gradient_checkpointing
from smht import SmhtConfig, SmhtForCausalLM
from smht.distributed.cuts import axes_of, cut
from smht.distributed.head_parallel import HeadParallelCausalLM, clip_grad_norm, head_parallel
from smht.distributed.ranks import Ranks
from smht.errors import UsageError


def tiny_config(**changes: Any) -> SmhtConfig:
    sizes = {"vocab_size": 23, "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 3}
    return SmhtConfig(**{**sizes, "intermediate_size": 48, "max_position_embeddings": 12, **changes})


def make_models(config: SmhtConfig, ranks: Ranks, dtype: torch.dtype) -> tuple[SmhtForCausalLM, HeadParallelCausalLM]:
    """The whole model with weights, norms included, that are all different, and this rank's part of it."""
    torch.manual_seed(1)
    whole = SmhtForCausalLM(config).to(dtype)
    with torch.no_grad():
        for parameter in whole.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return whole, head_parallel(whole, ranks)


def make_batch(config: SmhtConfig, seed: int, rows: int = 3, tokens: int = 10) -> dict[str, Tensor]:
    """Token ids, with padding on the left of a row that does not count."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(config.vocab_size, (rows, tokens), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def errors_of_one_step(ranks: Ranks, changes: dict[str, Any], offset: float = 0.0) -> dict[str, float]:
    """Largest relative error of each thing that a training step computes, in float64."""
    config = tiny_config(**changes)
    whole, part = make_models(config, ranks, torch.float64)
    if offset:
        for model, width in ((whole, config.hidden_size), (part, config.hidden_size // ranks.size)):
            with torch.no_grad():
                model.model.embed_tokens.weight += offset
            assert model.model.embed_tokens.weight.shape[1] == width
    batch = make_batch(config, seed=2)
    expected = whole(**batch, skip_logits=True, output_hidden_states=True)
    found = part(**batch, skip_logits=True, output_hidden_states=True)
    expected.loss.backward()
    found.loss.backward()
    gradients = {name: parameter.grad for name, parameter in whole.named_parameters()}
    pairs = {
        "loss": (expected.loss, found.loss),
        "logits": (whole(**batch).logits, part(**batch).logits),
        "gradient norm": (
            nn.utils.get_total_norm([gradient for gradient in gradients.values() if gradient is not None]),
            clip_grad_norm(part, float("inf"), ranks),
        ),
    }
    for number, (whole_state, state) in enumerate(zip(expected.hidden_states, found.hidden_states, strict=True)):
        pairs[f"hidden states {number}"] = (cut(whole_state, -1, ranks), state)
    for name, parameter, axis in axes_of(part):
        gradient = gradients[name]
        assert gradient is not None
        pairs[f"gradient of {name}"] = (cut(gradient, axis, ranks), parameter.grad)
    # The gradient of a key's bias is 0 but for rounding: softmax does not see it.
    smallest = 1e-4 * float(pairs["gradient norm"][0])
    return {
        name: relative_error(*pair, smallest if name.startswith("gradient of") else 1e-300)
        for name, pair in pairs.items()
    }


@torch.no_grad()
def relative_error(expected: Tensor, found: Tensor | None, smallest: float = 1e-300) -> float:
    """The largest difference, over the largest number or `smallest`."""
    assert found is not None and expected.shape == found.shape, (expected.shape, found)
    if not expected.numel():
        return 0.0
    return float((expected - found).abs().max() / expected.abs().max().clamp_min(smallest))


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """As runs have it."""
    return torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1, fused=True)


@torch.no_grad()
def share_first(model: nn.Module, ranks: Ranks) -> None:
    """Give all ranks the weights that rank 0 has."""
    for parameter in model.parameters():
        dist.broadcast(parameter, group=ranks.group, group_src=0)


def train_both(ranks: Ranks, changes: dict[str, Any], steps: int) -> tuple[list[float], list[float], float]:
    """Losses of the whole model, which rank 0 trains, and of its parts, trained alike, and the largest difference of a
    weight at the end."""
    config = tiny_config(**changes)
    whole, part = make_models(config, ranks, torch.float64)
    optimizers = [adamw(model) for model in (whole, part)]
    losses: tuple[list[float], list[float]] = ([], [])
    for step in range(steps):
        batch = make_batch(config, seed=step)
        for model, optimizer, kept in zip((whole, part), optimizers, losses, strict=True):
            if model is whole and ranks.rank > 0:
                continue
            optimizer.zero_grad()
            loss = model(**batch, skip_logits=True).loss
            loss.backward()
            if model is part:
                clip_grad_norm(part, 1.0, ranks)
            else:
                nn.utils.clip_grad_norm_(whole.parameters(), 1.0)
            optimizer.step()
            kept.append(loss.item())
    share_first(whole, ranks)
    state = dict(whole.named_parameters())
    with torch.no_grad():
        errors = [float((cut(state[name], axis, ranks) - own).abs().max()) for name, own, axis in axes_of(part)]
    return *losses, max(errors)


def saved_and_generated(ranks: Ranks, changes: dict[str, Any], folder: str) -> tuple[float, list[list[int]]]:
    """The largest difference of a weight after saving and loading, and what the parts generate; rank 0 compares."""
    config = tiny_config(**changes)
    whole, part = make_models(config, ranks, torch.float64)
    part.save_pretrained(folder)
    error = 0.0
    if ranks.rank == 0:
        loaded = SmhtForCausalLM.from_pretrained(folder, dtype=torch.float64)
        assert loaded.config.to_diff_dict().get("hidden_size") == config.to_diff_dict().get("hidden_size")
        pairs = zip(loaded.parameters(), whole.parameters(), strict=True)
        error = max(relative_error(left, right) for left, right in pairs)
    prompt = torch.tensor([[1, 2, 3], [4, 5, 6]])
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    expected = whole.eval().generate(prompt, **options)
    found = part.eval().generate(prompt, **options)
    assert found.tolist() == expected.tolist()
    return error, found.tolist()


def checkpointed_gradients(ranks: Ranks) -> float:
    """The largest relative difference that gradient checkpointing makes."""
    config = tiny_config(mixing="shuffle")
    _, part = make_models(config, ranks, torch.float64)
    batch = make_batch(config, seed=0)
    gradients = []
    for use in (False, True):
        part.zero_grad()
        if use:
            enable_gradient_checkpointing(part.train(), use_reentrant=False)
            assert part.model.gradient_checkpointing
        part(**batch, skip_logits=True).loss.backward()
        gradients.append([parameter.grad for parameter in part.parameters()])
    return max(relative_error(*pair) for pair in zip(*gradients, strict=True))


def refusal(ranks: Ranks, changes: dict[str, Any]) -> str:
    """What is said of a model that cannot be cut."""
    try:
        head_parallel(SmhtForCausalLM(tiny_config(**changes)), ranks)
    except UsageError as error:
        return str(error)
    return ""
