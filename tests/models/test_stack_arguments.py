"""Which class serves which stack, and which arguments a stack takes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from helpers.errors import refused
from helpers.hugging_face import TWO_STACKS, random_tokens, tiny, tiny_config, tiny_model, tiny_seq2seq
from smht import SmhtForCausalLM, SmhtForSeq2SeqLM, SmhtForSequenceClassification, SmhtModel
from smht.layers.position import POSITION_ENCODINGS
from smht.models import SmhtPreTrainedModel
from smht.models.cache_argument import CACHE_ARGUMENT
from smht.models.configuration import STACKS

SERVED: dict[type[SmhtPreTrainedModel], str] = {
    SmhtForCausalLM: "'decoder'",
    SmhtForSeq2SeqLM: "'encoder_decoder'",
    SmhtForSequenceClassification: "'encoder' or 'decoder'",
}


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("model_class", SERVED)
def test_a_class_refuses_stacks_that_it_cannot_serve(model_class: type[SmhtPreTrainedModel], stack: str) -> None:
    config, stacks = tiny_config(**{**TWO_STACKS, "stack": stack}), SERVED[model_class]
    if repr(stack) in stacks:
        assert model_class(config).config.stack == stack
        return
    with refused(f"stack = {stack!r} is not for {model_class.__name__}, which needs stack = {stacks}"):
        model_class(config)


def test_a_saved_encoder_is_no_language_model(tmp_path: Path) -> None:
    tiny(SmhtModel, stack="encoder").save_pretrained(tmp_path)
    with refused("stack = 'encoder' is not for SmhtForCausalLM"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_an_encoder_takes_no_cache_and_gives_none() -> None:
    encoder = tiny(SmhtModel, stack="encoder")
    assert CACHE_ARGUMENT not in encoder(random_tokens(), use_cache=True)
    with refused("an encoder looks both ways, so there is nothing to cache"):
        encoder(random_tokens(), **{CACHE_ARGUMENT: DynamicCache(config=encoder.config)})


@pytest.mark.parametrize("stack", ["decoder", "encoder"])
@pytest.mark.parametrize(
    "name",
    ["decoder_input_ids", "decoder_attention_mask", "decoder_position_ids", "decoder_inputs_embeds", "encoder_outputs"],
)
def test_decoder_arguments_are_for_two_stacks(stack: str, name: str) -> None:
    value: Any = (torch.zeros(2, 6, 16),) if name == "encoder_outputs" else torch.ones(2, 6, dtype=torch.long)
    with refused(f"decoder arguments are for stack = 'encoder_decoder', not {stack!r}"):
        tiny(SmhtModel, stack=stack)(random_tokens(), **{name: value})


@pytest.mark.parametrize("encoding", POSITION_ENCODINGS)
@pytest.mark.parametrize("stack", STACKS)
@torch.no_grad()
def test_embeddings_serve_in_place_of_ids(stack: str, encoding: str) -> None:
    options = {"stack": stack, "position_embedding": encoding}
    model = tiny(SmhtModel, **(options if stack != "encoder_decoder" else {**TWO_STACKS, **options})).double()
    target = {"decoder_input_ids": random_tokens(2, 4)} if stack == "encoder_decoder" else {}
    by_id = model(random_tokens(), **target).last_hidden_state
    embed = model.get_input_embeddings()
    target = {"decoder_inputs_embeds": embed(random_tokens(2, 4))} if stack == "encoder_decoder" else {}
    by_embedding = model(inputs_embeds=embed(random_tokens()), **target).last_hidden_state
    assert torch.equal(by_embedding, by_id)


@torch.no_grad()
def test_waves_do_not_drown_embeddings() -> None:
    """Section 3.4 of arXiv:1706.03762: embeddings are multiplied by √D where sinusoids are added to them."""
    model = tiny(SmhtModel, stack="encoder", position_embedding="sinusoidal")
    first = model(random_tokens(), output_hidden_states=True).hidden_states[0]
    waves = model.embed_positions.embed(torch.arange(6))
    torch.testing.assert_close(first, 4 * model.get_input_embeddings()(random_tokens()) + waves)


@pytest.mark.parametrize("encoding", ["learned", "sinusoidal", "rotary"])
@pytest.mark.parametrize("pattern", [{}, {"attention_pattern": "block_sparse", "sparse_block_size": 3}], ids=str)
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@torch.no_grad()
def test_a_decoder_asked_to_look_both_ways_is_an_encoder(
    encoding: str, pattern: dict[str, Any], implementation: str
) -> None:
    options = {"position_embedding": encoding, "attn_implementation": implementation, "use_cache": False, **pattern}
    decoder, encoder = (tiny(SmhtModel, stack=stack, **options).double() for stack in ("decoder", "encoder"))
    encoder.load_state_dict(decoder.state_dict())
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]])
    for given in ({}, {"attention_mask": mask}):
        ours = decoder(random_tokens(), is_causal=False, **given).last_hidden_state
        expected = encoder(random_tokens(), **given).last_hidden_state
        real = given.get("attention_mask", torch.ones_like(mask)).bool()
        torch.testing.assert_close(ours[real], expected[real], rtol=0, atol=1e-12)
        assert (ours - decoder(random_tokens(), **given).last_hidden_state)[real].abs().max() > 1e-3


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@torch.no_grad()
def test_relative_positions_hide_nothing_from_a_decoder_asked_to_look_both_ways(implementation: str) -> None:
    model = tiny_model(position_embedding="relative", attn_implementation=implementation, use_cache=False).double()
    everything = torch.ones(2, 1, 6, 6, dtype=torch.bool)
    expected = model(random_tokens(), attention_mask=everything).logits
    ours = model(random_tokens(), is_causal=False).logits
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)
    assert (ours - model(random_tokens()).logits).abs().max() > 1e-3


@torch.no_grad()
def test_sequences_packed_into_one_row_do_not_see_each_other() -> None:
    parts = [random_tokens(1, length, seed=length) for length in (3, 1, 5)]
    position_ids = torch.cat([torch.arange(part.shape[1]) for part in parts])[None]
    for encoding in POSITION_ENCODINGS:
        model = tiny_model(position_embedding=encoding, use_cache=False).double()
        packed = model(torch.cat(parts, 1), position_ids=position_ids).logits
        alone = torch.cat([model(part).logits for part in parts], 1)
        torch.testing.assert_close(packed, alone, rtol=0, atol=1e-12)


@torch.no_grad()
def test_positions_beyond_the_context_are_refused_in_source_and_target() -> None:
    model, long = tiny_seq2seq(), random_tokens(1, 33)
    for texts in (
        {"input_ids": long, "decoder_input_ids": long[:, :3]},
        {"input_ids": long[:, :3], "decoder_input_ids": long},
    ):
        with refused("position 32 is outside the model's 32 positions"):
            model(**texts)


@pytest.mark.parametrize("encoding", POSITION_ENCODINGS)
@pytest.mark.parametrize("stack", STACKS)
def test_what_positions_cost(stack: str, encoding: str) -> None:
    options = {**(TWO_STACKS if stack == "encoder_decoder" else {}), "stack": stack}
    with_positions, without = (tiny(SmhtModel, **options, position_embedding=kind) for kind in (encoding, "none"))
    each = {"learned": 32 * 16, "relative": 32 * 4}.get(encoding, 0)
    stacks = 2 if stack == "encoder_decoder" else 1
    assert with_positions.num_parameters() - without.num_parameters() == stacks * each


@pytest.mark.parametrize("shape", [(2, 9), (3, 6), (6,), (2, 6, 6)])
def test_an_attention_mask_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    ids, mask = random_tokens(), torch.ones(shape)
    for model in (tiny_model(), tiny(SmhtModel, stack="encoder"), tiny(SmhtForSequenceClassification, stack="encoder")):
        with refused("the attention mask"):
            model(ids, attention_mask=mask)
    with refused("the attention mask"):
        tiny_seq2seq()(ids, decoder_input_ids=ids, decoder_attention_mask=mask)


@pytest.mark.parametrize("position_embedding", POSITION_ENCODINGS)
def test_whatever_is_not_zero_in_an_attention_mask_is_a_token(position_embedding: str) -> None:
    model, ids = tiny_model(position_embedding=position_embedding), random_tokens()
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
    expected = model(ids, attention_mask=mask).logits
    for same in (2 * mask, 0.5 * mask, -1 * mask, mask.bool()):
        assert torch.equal(model(ids, attention_mask=same).logits, expected)


def test_texts_without_a_batch_axis_and_unequal_batches_are_refused() -> None:
    with refused("input_ids must be [B, T]", "[6]"):
        tiny_model()(random_tokens()[0])
    with refused("there are 2 sources and 3 targets"):
        tiny_seq2seq()(random_tokens(2), decoder_input_ids=random_tokens(3))


def test_blocks_longer_than_the_context_are_refused() -> None:
    with refused("sparse_block_size = 33 is longer than the context", "max_position_embeddings = 32"):
        tiny_config(attention_pattern="block_sparse", sparse_block_size=33)
