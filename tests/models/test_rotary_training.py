"""Training with rotary positions: the fused op computes it, by every backend to the same loss and gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.hugging_face import left_padded, random_tokens, right_padded, tiny_model
from helpers.layers import composed_path
from helpers.tensors import assert_all_close
from smht import SmhtForCausalLM, ops


def batch(padding: str) -> dict[str, Any]:
    """Token ids, labels and, with padding, an attention mask."""
    ids = random_tokens(3, 9)
    if padding == "none":
        return {"input_ids": ids, "labels": ids}
    padded, mask = {"left": left_padded, "right": right_padded}[padding](ids, 2)
    mask[1, :4] = 0 if padding == "left" else 1  # another length for one of the rows
    return {"input_ids": padded, "attention_mask": mask, "labels": padded.masked_fill(mask == 0, -100)}


def loss_and_gradients(model: SmhtForCausalLM, given: dict[str, Tensor]) -> list[Tensor]:
    loss = model(**given, use_cache=False).loss
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("architecture", ["split", "shuffle"])
def test_every_backend_gives_the_composed_models_loss_and_gradients(
    architecture: str, padding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(architecture, position_embedding="rotary").train()
    given = batch(padding)
    calls: list[str] = []
    split_attention = ops.split_attention

    def recorded(*tensors: Tensor, **options: Any) -> Tensor:
        calls.append("rotated" if options["rotation"] is not None else "plain")
        return split_attention(*tensors, **options)

    monkeypatch.setattr(ops, "split_attention", recorded)
    monkeypatch.setattr(ops.backend, "_chosen", None)
    with composed_path(model):
        expected = loss_and_gradients(model, given)
    assert not calls
    for name in ops.BACKENDS:
        if ops.BACKENDS[name].why_unavailable() is None:
            calls.clear()
            ops.set_backend(name)
            assert_all_close(loss_and_gradients(model, given), expected, tolerance=2e-5)
            assert calls == ["rotated"] * model.config.num_hidden_layers


def test_the_kernels_take_a_training_step(monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := ops.BACKENDS["cpu"].why_unavailable():
        pytest.skip(reason)
    monkeypatch.setattr(ops.backend, "_chosen", None)
    ops.set_backend("cpu")
    model = tiny_model("shuffle", position_embedding="rotary").train()
    with torch.profiler.profile() as profile:
        loss_and_gradients(model, batch("left"))
    counts = {event.key: event.count for event in profile.key_averages()}
    assert counts["smht::split_attention"] == counts["smht::split_attention_backward"] == 3
