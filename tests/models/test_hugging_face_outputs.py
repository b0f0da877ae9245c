"""What a forward pass takes and gives back, by the names of transformers."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.hugging_face import ARCHITECTURES, VOCAB_SIZE, left_padded, random_tokens, tiny_model
from smht.models.cache_argument import CACHE_ARGUMENT

pytestmark = pytest.mark.usefixtures("silent_transformers")
every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)


@every_architecture
@torch.no_grad()
def test_attention_weights_are_causal_distributions_over_real_tokens(architecture: str) -> None:
    model = tiny_model(architecture, attn_implementation="eager")
    input_ids, mask = left_padded(random_tokens(2, 5), 2)
    outputs = model(input_ids, attention_mask=mask, output_attentions=True)
    assert len(outputs.attentions) == 3
    for weights in outputs.attentions:
        assert weights.shape == (2, 4, 7, 7)
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 7))
        real = weights[:, :, 2:]
        assert not real[..., :2].any()
        assert torch.equal(real, real.tril(2))
        assert (real[..., 2:].tril() > 0).sum() == 2 * 4 * 15


@torch.no_grad()
def test_attention_weights_mix_the_values() -> None:
    model = tiny_model("split", attn_implementation="eager").double()
    layer, seen = model.model.layers[1].self_attn, {}
    layer.v_proj.register_forward_hook(lambda _, __, output: seen.update(values=output))
    layer.o_proj.register_forward_pre_hook(lambda _, inputs: seen.update(mixed=inputs[0]))
    weights = model(random_tokens(), output_attentions=True).attentions[1]
    values = seen["values"].unflatten(-1, (4, 4))
    torch.testing.assert_close(torch.einsum("bhts,bshk->bthk", weights, values).flatten(-2), seen["mixed"])


@every_architecture
@torch.no_grad()
def test_hidden_states_are_the_embeddings_each_blocks_output_and_the_final_norm(architecture: str) -> None:
    model = tiny_model(architecture)
    inputs: list[Tensor] = []
    for module in (*model.model.layers, model.model.norm):
        module.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    outputs = model(random_tokens(), output_hidden_states=True)
    assert len(outputs.hidden_states) == 4
    for ours, expected in zip(outputs.hidden_states[:3], inputs, strict=False):
        assert torch.equal(ours, expected)
    assert torch.equal(outputs.hidden_states[3], model.model.norm(inputs[3]))
    assert torch.equal(model.lm_head(outputs.hidden_states[3]), outputs.logits)
    positions = model.model.embed_positions.weight[:6]
    assert torch.equal(outputs.hidden_states[0], model.model.embed_tokens(random_tokens()) + positions)


@torch.no_grad()
def test_logits_to_keep_takes_a_number_or_indices() -> None:
    model = tiny_model()
    every = model(random_tokens()).logits
    assert torch.equal(model(random_tokens(), logits_to_keep=2).logits, every[:, -2:])
    kept = torch.tensor([0, 3])
    assert torch.equal(model(random_tokens(), logits_to_keep=kept).logits, every[:, kept])


@torch.no_grad()
def test_loss_is_the_mean_cross_entropy_of_the_labels_that_count() -> None:
    model = tiny_model()
    input_ids = random_tokens(3, 8)
    labels = input_ids.clone()
    labels[0, 2:5] = labels[1, 0] = labels[2, 1:] = -100
    outputs = model(input_ids, labels=labels)
    scored = F.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="none")
    counted = labels[:, 1:].flatten() != -100
    assert counted.sum() == 11
    torch.testing.assert_close(outputs.loss, scored[counted].mean())
    shifted = F.pad(labels[:, 1:], (0, 1), value=-100)
    torch.testing.assert_close(model(input_ids, labels=labels, shift_labels=shifted).loss, outputs.loss)
    over_more = model(input_ids, labels=labels, num_items_in_batch=22).loss
    torch.testing.assert_close(over_more, outputs.loss / 2)


@torch.no_grad()
def test_tuples_hold_the_same_in_the_same_order() -> None:
    model = tiny_model(attn_implementation="eager")
    options: dict[str, Any] = {"output_attentions": True, "output_hidden_states": True, "labels": random_tokens()}
    named = model(random_tokens(), **options)
    unnamed = model(random_tokens(), return_dict=False, **options)
    assert list(named) == ["loss", "logits", CACHE_ARGUMENT, "hidden_states", "attentions"]
    assert isinstance(unnamed, tuple) and len(unnamed) == 5
    assert torch.equal(unnamed[0], named.loss) and torch.equal(unnamed[1], named.logits)
    for number in (3, 4):
        assert all(map(torch.equal, unnamed[number], named.to_tuple()[number]))
    base = model.model(random_tokens(), return_dict=False, use_cache=False)
    assert len(base) == 1 and torch.equal(base[0], named.hidden_states[-1])


def test_cache_comes_only_where_it_is_wanted() -> None:
    model = tiny_model()
    assert model(random_tokens())[CACHE_ARGUMENT].get_seq_length() == 6
    assert CACHE_ARGUMENT not in model(random_tokens(), use_cache=False)
    assert CACHE_ARGUMENT not in tiny_model(use_cache=False)(random_tokens())


@every_architecture
@pytest.mark.parametrize("padding", [0, 2])
@pytest.mark.parametrize("use_cache", [False, True])
def test_attention_implementations_agree(architecture: str, padding: int, use_cache: bool) -> None:
    input_ids, mask = left_padded(random_tokens(2, 7), padding)
    results = []
    for implementation in ("eager", "sdpa"):
        model = tiny_model(architecture, attn_implementation=implementation, use_cache=use_cache).double()
        logits = model(input_ids, attention_mask=mask if padding else None).logits[:, padding:]
        logits.square().mean().backward()
        results.append([logits, *(parameter.grad for parameter in model.parameters())])
    for eager, sdpa in zip(*results, strict=True):
        torch.testing.assert_close(sdpa, eager, rtol=1e-9, atol=1e-11)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.filterwarnings("ignore:_compile flag on create_block_mask:DeprecationWarning")
@torch.no_grad()
def test_flex_attention_agrees() -> None:
    model, wanted = tiny_model(attn_implementation="flex_attention"), tiny_model()
    input_ids, mask = left_padded(random_tokens(2, 7), 2)
    ours = model(input_ids, attention_mask=mask).logits[:, 2:]
    torch.testing.assert_close(ours, wanted(input_ids, attention_mask=mask).logits[:, 2:], rtol=1e-4, atol=1e-5)


@every_architecture
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@torch.no_grad()
def test_prepared_four_dimensional_mask_says_who_attends_to_whom(architecture: str, implementation: str) -> None:
    model = tiny_model(architecture, attn_implementation=implementation).double()
    input_ids = random_tokens(2, 6)
    causal = torch.ones(6, 6, dtype=torch.bool).tril()[None, None].expand(2, 1, 6, 6)
    added = torch.zeros(causal.shape, dtype=torch.float64).masked_fill(~causal, torch.finfo(torch.float64).min)
    wanted = model(input_ids).logits
    for mask in (causal, added):
        torch.testing.assert_close(model(input_ids, attention_mask=mask).logits, wanted, rtol=0, atol=1e-12)
    alone = torch.eye(6, dtype=torch.bool)[None, None].expand(2, 1, 6, 6)
    logits = model(input_ids, attention_mask=alone).logits
    for place in range(6):
        position = torch.tensor([[place]])
        single = model(input_ids[:, place : place + 1], position_ids=position).logits
        torch.testing.assert_close(logits[:, place : place + 1], single, rtol=0, atol=1e-12)


@every_architecture
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@torch.no_grad()
def test_without_causality_every_token_sees_every_token(architecture: str, implementation: str) -> None:
    model = tiny_model(architecture, attn_implementation=implementation, use_cache=False).double()
    input_ids = random_tokens(2, 6)
    everything = torch.ones(2, 1, 6, 6, dtype=torch.bool)
    wanted = model(input_ids, attention_mask=everything).logits
    torch.testing.assert_close(model(input_ids, is_causal=False).logits, wanted, rtol=0, atol=1e-12)
    assert (model(input_ids).logits - wanted).abs().amax() > 1e-3
    padded, mask = left_padded(input_ids, 2)
    ours = model(padded, attention_mask=mask, is_causal=False).logits[:, 2:]
    torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-12)


@every_architecture
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@torch.no_grad()
def test_sequences_packed_into_one_row_do_not_see_each_other(architecture: str, implementation: str) -> None:
    model = tiny_model(architecture, attn_implementation=implementation, use_cache=False).double()
    parts = [random_tokens(1, length, seed=length) for length in (3, 1, 5)]
    position_ids = torch.cat([torch.arange(part.shape[1]) for part in parts])[None]
    packed = model(torch.cat(parts, 1), position_ids=position_ids).logits
    alone = torch.cat([model(part).logits for part in parts], 1)
    torch.testing.assert_close(packed, alone, rtol=0, atol=1e-12)


@torch.no_grad()
def test_padding_on_the_right_changes_no_real_token() -> None:
    model = tiny_model().double()
    input_ids = random_tokens(2, 5)
    mask = F.pad(torch.ones_like(input_ids), (0, 3))
    padded = model(F.pad(input_ids, (0, 3), value=VOCAB_SIZE - 1), attention_mask=mask).logits
    torch.testing.assert_close(padded[:, :5], model(input_ids).logits, rtol=0, atol=1e-12)
