"""Block-sparse attention inside models: the op against the mask written out, padding, caches, what is refused."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache

from helpers.errors import refused
from helpers.hugging_face import TWO_STACKS, left_padded, random_tokens, right_padded, tiny, tiny_model, tiny_seq2seq
from helpers.tensors import assert_all_close
from smht import SmhtModel
from smht.layers.position import POSITION_ENCODINGS
from smht.models.cache_argument import CACHE_ARGUMENT
from smht.models.configuration import STACKS

SPARSE: dict[str, Any] = {"attention_pattern": "block_sparse", "sparse_block_size": 3}
every_stack = pytest.mark.parametrize("stack", STACKS)
every_encoding = pytest.mark.parametrize("encoding", POSITION_ENCODINGS)


def make(stack: str, **changes: Any) -> SmhtModel:
    options = {"stack": stack, "num_hidden_layers": 2, "use_cache": False, **SPARSE, **changes}
    return tiny(SmhtModel, **(options if stack != "encoder_decoder" else {**TWO_STACKS, **options})).double()


def padded_inputs(stack: str, pad: Any) -> tuple[dict[str, Tensor], Tensor]:
    """What a stack takes, two rows of which one is padded; and where the real tokens of its output are."""
    whole, short = random_tokens(1, 11), random_tokens(1, 7, seed=1)
    padded, mask = pad(short, 4)
    given = {"input_ids": torch.cat([whole, padded]), "attention_mask": torch.cat([torch.ones_like(whole), mask])}
    if stack != "encoder_decoder":
        return given, given["attention_mask"].bool()
    target, target_mask = pad(random_tokens(2, 5, seed=2), 3)
    return {**given, "decoder_input_ids": target, "decoder_attention_mask": target_mask}, target_mask.bool()


def output_and_gradients(model: SmhtModel, given: dict[str, Tensor], real: Tensor) -> list[Tensor]:
    hidden_states = model(**given).last_hidden_state[real]
    loss = (hidden_states * torch.linspace(-1, 2, 16)).sum()
    return [hidden_states.detach(), *torch.autograd.grad(loss, list(model.parameters()), allow_unused=False)]


@every_stack
@every_encoding
@pytest.mark.parametrize("pad", [left_padded, right_padded])
@pytest.mark.parametrize("block_size", [1, 3, 32])
def test_the_op_computes_what_the_mask_written_out_computes(
    stack: str, encoding: str, pad: Any, block_size: int
) -> None:
    options = {"position_embedding": encoding, "sparse_block_size": block_size}
    given, real = padded_inputs(stack, pad)
    results = [
        output_and_gradients(make(stack, attn_implementation=implementation, **options), given, real)
        for implementation in ("sdpa", "eager")
    ]
    assert_all_close(*results, tolerance=1e-9)


@every_stack
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_blocks_longer_than_the_text_are_full_attention(stack: str, implementation: str) -> None:
    given, real = padded_inputs(stack, right_padded)
    sparse = make(stack, sparse_block_size=11, attn_implementation=implementation)
    full = make(stack, attention_pattern="full", sparse_block_size=None)
    assert_all_close(output_and_gradients(sparse, given, real), output_and_gradients(full, given, real), 1e-9)
    narrow = make(stack, sparse_block_size=2, attn_implementation=implementation)
    assert not torch.allclose(narrow(**given).last_hidden_state[real], full(**given).last_hidden_state[real])


@every_stack
@torch.no_grad()
def test_weights_follow_the_pattern(stack: str) -> None:
    model = make(stack, attn_implementation="eager", num_hidden_layers=1)
    given = {"input_ids": random_tokens(2, 8)}
    given |= {"decoder_input_ids": random_tokens(2, 8)} if stack == "encoder_decoder" else {}
    outputs = model(**given, output_attentions=True)
    # Blocks 012 345 67, whose last tokens 2 and 5 speak for them.
    both_ways = torch.tensor([[q // 3 == k // 3 or k in (2, 5) for k in range(8)] for q in range(8)])
    names = {
        "decoder": [("attentions", both_ways.tril())],
        "encoder": [("attentions", both_ways)],
        "encoder_decoder": [("encoder_attentions", both_ways), ("decoder_attentions", both_ways.tril())],
    }
    for name, pattern in names[stack]:
        weights = outputs[name][0]
        assert torch.equal(weights > 0, pattern.expand_as(weights)), name
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 8, dtype=torch.float64))
    if stack == "encoder_decoder":
        assert (outputs.cross_attentions[0] > 0).all()


@every_encoding
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@torch.no_grad()
def test_cached_steps_of_any_length_give_the_logits_of_the_whole(encoding: str, implementation: str) -> None:
    model = tiny_model(position_embedding=encoding, attn_implementation=implementation, **SPARSE).double()
    input_ids, mask = left_padded(random_tokens(2, 12), 2)
    mask[1, :4] = 0
    whole = model(input_ids, attention_mask=mask).logits
    cache, parts, end = DynamicCache(config=model.config), [], 0
    for part in input_ids.split([3, 4, 1, 1, 5], 1):
        end += part.shape[1]
        parts.append(model(part, attention_mask=mask[:, :end], **{CACHE_ARGUMENT: cache}).logits)
    real = mask.bool()
    torch.testing.assert_close(torch.cat(parts, 1)[real], whole[real], rtol=0, atol=1e-10)


@every_stack
def test_counted_positions_may_be_given_and_no_others(stack: str) -> None:
    given, real = padded_inputs(stack, left_padded)
    model = make(stack, position_embedding="rotary")
    expected = model(**given).last_hidden_state
    places = (given["attention_mask"].cumsum(-1) - 1).clamp_min(0)
    ours = model(**given, position_ids=places).last_hidden_state
    assert torch.equal(ours[real], expected[real])
    # Padding may have any; transformers gives it 1.
    elsewhere = model(**given, position_ids=places.masked_fill(given["attention_mask"] == 0, 1)).last_hidden_state
    assert torch.equal(elsewhere[real], expected[real])
    with refused("attention_pattern = 'block_sparse' counts positions by the attention mask: give no position_ids"):
        model(**given, position_ids=places + 1)


def test_positions_of_a_target_are_counted_too() -> None:
    given, real = padded_inputs("encoder_decoder", left_padded)
    model = make("encoder_decoder")
    places = (given["decoder_attention_mask"].cumsum(-1) - 1).clamp_min(0)
    ours = model(**given, decoder_position_ids=places).last_hidden_state
    assert torch.equal(ours[real], model(**given).last_hidden_state[real])
    with refused("counts positions by the attention mask: give no position_ids"):
        model(**given, decoder_position_ids=places + 1)


@torch.no_grad()
def test_positions_of_a_cached_step_are_those_after_the_cache() -> None:
    model = tiny_model(**SPARSE).double()
    input_ids, mask = left_padded(random_tokens(2, 6), 2)
    expected = model(input_ids, attention_mask=mask).logits[:, -1:]
    for place, fits in ((5, True), (0, False)):
        cache = model(input_ids[:, :-1], attention_mask=mask[:, :-1])[CACHE_ARGUMENT]
        step = {"attention_mask": mask, "position_ids": torch.full((2, 1), place), CACHE_ARGUMENT: cache}
        if fits:
            torch.testing.assert_close(model(input_ids[:, -1:], **step).logits, expected, rtol=0, atol=1e-10)
        else:
            with refused("give no position_ids"):
                model(input_ids[:, -1:], **step)


@every_stack
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_padding_between_tokens_is_refused(stack: str, implementation: str) -> None:
    given, _ = padded_inputs(stack, left_padded)
    given["attention_mask"][1] = torch.tensor([0, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0])
    with refused("needs the tokens of each row side by side", "padding between those of row 1"):
        make(stack, attn_implementation=implementation)(**given)


@torch.no_grad()
def test_a_prompt_padded_on_the_right_cannot_go_on() -> None:
    """A cached token's position is taken from its column, which padding between tokens would move."""
    model = tiny_model(**SPARSE)
    input_ids, mask = right_padded(random_tokens(2, 5), 2)
    cache = model(input_ids, attention_mask=mask)[CACHE_ARGUMENT]
    longer = torch.cat([mask, torch.ones(2, 1, dtype=torch.long)], 1)
    with refused("padding between those of row 0"):
        model(input_ids[:, :1], attention_mask=longer, **{CACHE_ARGUMENT: cache})


@every_stack
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_prepared_masks_are_refused(stack: str, implementation: str) -> None:
    given, _ = padded_inputs(stack, left_padded)
    given["attention_mask"] = torch.ones(2, 1, 11, 11, dtype=torch.bool)
    with refused("attention_pattern = 'block_sparse' takes an attention mask [B, S], got [2, 1, 11, 11]"):
        make(stack, attn_implementation=implementation)(**given)


@pytest.mark.parametrize("implementation", ["flash_attention_2", "flex_attention"])
@pytest.mark.parametrize(
    ("fields", "what"),
    [
        (SPARSE, "attention_pattern = 'block_sparse'"),
        ({"position_embedding": "relative"}, "position_embedding = 'relative'"),
    ],
    ids=["block_sparse", "relative"],
)
@pytest.mark.parametrize("stack", ["decoder", "encoder"])
def test_attention_implementations_that_take_no_bias_are_refused(
    stack: str, fields: dict[str, Any], what: str, implementation: str
) -> None:
    model = tiny(SmhtModel, stack=stack, **fields)
    # As after `attn_implementation=`, which only works where the implementation is installed.
    model.config._attn_implementation_internal = implementation
    with refused(f"{what} needs attn_implementation = 'sdpa' or 'eager', not {implementation!r}"):
        model(random_tokens())


class LargestTensor(TorchDispatchMode):
    """Counts the elements of the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        for made in output if isinstance(output, (tuple, list)) else [output]:
            if isinstance(made, Tensor):
                self.elements = max(self.elements, made.untyped_storage().nbytes() // made.element_size())
        return output


def largest_tensor(stack: str, encoding: str, **changes: Any) -> int:
    """In a forward and a backward pass over 512 tokens, with padding."""
    options = {"max_position_embeddings": 512, "sparse_block_size": 23, "position_embedding": encoding, **changes}
    model = make(stack, attn_implementation="sdpa", **options).train()
    source, mask = left_padded(random_tokens(1, 500), 12)
    given = {"input_ids": source, "attention_mask": mask}
    if stack == "encoder_decoder":
        given |= {"decoder_input_ids": random_tokens(1, 8)}
    with LargestTensor() as largest:
        model(**given).last_hidden_state.square().sum().backward()
    return largest.elements


@every_stack
@pytest.mark.parametrize("encoding", ["learned", "relative", "rotary"])
def test_nothing_of_the_size_of_all_pairs_is_made(stack: str, encoding: str) -> None:
    assert largest_tensor(stack, encoding) < 512 * 512 // 2
    # The measurement sees what full attention with a bias makes.
    full = largest_tensor(stack, "relative", attention_pattern="full", sparse_block_size=None)
    assert full >= 4 * 512 * 512


@torch.no_grad()
def test_a_target_sees_its_block_and_the_ends_of_earlier_ones() -> None:
    full, sparse = tiny_seq2seq().double(), tiny_seq2seq(**{**SPARSE, "sparse_block_size": 2}).double()
    source, target = random_tokens(2, 2), random_tokens(2, 6)
    ours, expected = (model(source, decoder_input_ids=target).logits for model in (sparse, full))
    # The source is one block, and the target's first block is all that its tokens see in any case.
    torch.testing.assert_close(ours[:, :2], expected[:, :2])
    assert ((ours[:, 2:] - expected[:, 2:]).abs().amax(-1) > 1e-4).all()
