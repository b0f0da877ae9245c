"""`SmhtForSequenceClassification`: pooling, losses, padding, labels, saving."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForSequenceClassification

from helpers.errors import refused
from helpers.hugging_face import ARCHITECTURES, left_padded, random_tokens, right_padded, tiny, tiny_model
from smht import SmhtForSequenceClassification
from smht.models.cache_argument import CACHE_ARGUMENT

STACKS = ("encoder", "decoder")
every_stack = pytest.mark.parametrize("stack", STACKS)
every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)


def make(stack: str = "encoder", architecture: str = "split", **changes: Any) -> SmhtForSequenceClassification:
    options = {"stack": stack, "num_labels": 3, "tie_word_embeddings": False, **changes}
    return tiny(SmhtForSequenceClassification, architecture, **options).double()


ROWS = [random_tokens(1, length, seed=length) for length in (2, 5, 7)]


@every_architecture
@torch.no_grad()
def test_an_encoder_pools_the_mean_of_its_real_tokens(architecture: str) -> None:
    model = make("encoder", architecture)
    input_ids, mask = right_padded(random_tokens(2, 5), 3)
    mask[1, 1:4] = 0
    hidden_states = model.model(input_ids, attention_mask=mask).last_hidden_state
    means = torch.stack([row[real].mean(0) for row, real in zip(hidden_states, mask.bool(), strict=True)])
    torch.testing.assert_close(model(input_ids, attention_mask=mask).logits, means @ model.score.weight.T)
    whole = model.model(input_ids).last_hidden_state.mean(1)
    torch.testing.assert_close(model(input_ids).logits, whole @ model.score.weight.T)


@every_architecture
@torch.no_grad()
def test_a_decoder_pools_its_last_real_token(architecture: str) -> None:
    model = make("decoder", architecture)
    input_ids, mask = right_padded(random_tokens(2, 5), 3)
    mask[1, 3:] = 0
    hidden_states = model.model(input_ids, attention_mask=mask).last_hidden_state
    last = torch.stack([hidden_states[0, 4], hidden_states[1, 2]])
    torch.testing.assert_close(model(input_ids, attention_mask=mask).logits, last @ model.score.weight.T)
    whole = model.model(input_ids).last_hidden_state[:, -1]
    torch.testing.assert_close(model(input_ids).logits, whole @ model.score.weight.T)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@every_stack
@torch.no_grad()
def test_long_texts_are_pooled_exactly_in_half_precision(stack: str, dtype: torch.dtype) -> None:
    # bfloat16 has no number 299, float16 none of 2999.
    tokens = 300 if dtype == torch.bfloat16 else 3000
    model = make(stack, max_position_embeddings=4, num_hidden_layers=1)
    hidden_states, real = torch.zeros(1, tokens + 2, 16), torch.ones(1, tokens + 2, dtype=torch.long)
    hidden_states[:, tokens - 2], real[:, tokens - 1 :] = 1.0, 0
    pooled = model._pool(hidden_states.to(dtype), real)
    expected = 1.0 if stack == "decoder" else 1 / (tokens - 1)
    torch.testing.assert_close(pooled.float(), torch.full((1, 16), expected), rtol=0.01, atol=0)


@every_stack
@pytest.mark.parametrize("pattern", ["full", "block_sparse"])
@pytest.mark.parametrize("encoding", ["learned", "sinusoidal", "relative", "rotary", "none"])
@torch.no_grad()
def test_padding_on_either_side_changes_no_logit(stack: str, pattern: str, encoding: str) -> None:
    sparse = {"sparse_block_size": 3} if pattern == "block_sparse" else {}
    model = make(stack, "shuffle", attention_pattern=pattern, position_embedding=encoding, **sparse)
    expected = torch.cat([model(row).logits for row in ROWS])
    for pad in (left_padded, right_padded):
        padded = [pad(row, 7 - row.shape[1]) for row in ROWS]
        input_ids, mask = (torch.cat(parts) for parts in zip(*padded, strict=True))
        logits = model(input_ids, attention_mask=mask).logits
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-10)


@every_stack
@torch.no_grad()
def test_without_a_mask_the_padding_token_tells_padding(stack: str) -> None:
    model = make(stack, pad_token_id=36)
    rows = [row % 36 for row in ROWS]
    expected = torch.cat([model(row).logits for row in rows])
    for pad in (left_padded, right_padded):
        input_ids = torch.cat([pad(row, 7 - row.shape[1], 36)[0] for row in rows])
        torch.testing.assert_close(model(input_ids).logits, expected, rtol=0, atol=1e-10)
    embeddings = model.get_input_embeddings()(rows[1])
    torch.testing.assert_close(model(inputs_embeds=embeddings).logits, expected[1:2], rtol=0, atol=1e-10)


@every_stack
@torch.no_grad()
def test_a_text_of_nothing_but_padding_has_finite_logits(stack: str) -> None:
    input_ids, mask = random_tokens(2, 5), torch.ones(2, 5, dtype=torch.long)
    mask[1] = 0
    logits = make(stack)(input_ids, attention_mask=mask).logits
    assert logits.isfinite().all()
    torch.testing.assert_close(logits[:1], make(stack)(input_ids[:1]).logits)


@every_stack
def test_loss_of_one_label_is_cross_entropy(stack: str) -> None:
    model, labels = make(stack), torch.tensor([2, 0])
    outputs = model(random_tokens(), labels=labels)
    torch.testing.assert_close(outputs.loss, F.cross_entropy(outputs.logits, labels))
    outputs.loss.backward()
    # Some tokens of the vocabulary are not in the texts, but every parameter is used.
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


@every_stack
def test_loss_of_several_labels_and_of_numbers(stack: str) -> None:
    several = make(stack, problem_type="multi_label_classification")
    chosen = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    outputs = several(random_tokens(), labels=chosen)
    torch.testing.assert_close(outputs.loss, F.binary_cross_entropy_with_logits(outputs.logits, chosen))
    number, wanted = make(stack, num_labels=1), torch.tensor([0.5, -2.0], dtype=torch.float64)
    outputs = number(random_tokens(), labels=wanted)
    assert outputs.logits.shape == (2, 1)
    torch.testing.assert_close(outputs.loss, F.mse_loss(outputs.logits[:, 0], wanted))


@pytest.mark.parametrize(("labels", "wrong"), [([0, 3], 3), ([-1, 2], -1), ([-100, 0], -100)])
@every_stack
def test_a_label_outside_the_labels_is_refused(stack: str, labels: list[int], wrong: int) -> None:
    with refused(f"label {wrong} is not one of the 3 labels, 0 to 2"):
        make(stack)(random_tokens(), labels=torch.tensor(labels))


@every_stack
def test_no_texts_give_no_logits(stack: str) -> None:
    none = random_tokens()[:0]
    # transformers' own function for SDPA fails without rows.
    outputs = make(stack, attn_implementation="eager")(none, labels=torch.empty(0, dtype=torch.long))
    assert outputs.logits.shape == (0, 3)


@every_stack
@torch.no_grad()
def test_outputs_have_the_shapes_and_the_order_of_transformers(stack: str) -> None:
    model = make(stack, attn_implementation="eager")
    options: dict[str, Any] = {"output_attentions": True, "output_hidden_states": True, "labels": torch.tensor([1, 2])}
    outputs = model(random_tokens(), **options)
    cached = [CACHE_ARGUMENT] if stack == "decoder" else []
    assert list(outputs) == ["loss", "logits", *cached, "hidden_states", "attentions"]
    assert outputs.logits.shape == (2, 3)
    assert [state.shape for state in outputs.hidden_states] == [(2, 6, 16)] * 4
    assert [weights.shape for weights in outputs.attentions] == [(2, 4, 6, 6)] * 3
    for weights in outputs.attentions:
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 6, dtype=torch.float64))
        assert torch.equal(weights, weights.tril()) == (stack == "decoder")
    as_tuple = model(random_tokens(), return_dict=False, **options)
    assert isinstance(as_tuple, tuple) and torch.equal(as_tuple[1], outputs.logits)


def test_dropout_acts_before_the_head_in_training_only() -> None:
    model, seen = make(hidden_dropout=0.5), []
    model.score.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(random_tokens())
    model.train()(random_tokens())
    assert not (seen[0] == 0).any() and (seen[1] == 0).any()


def test_an_encoder_decoder_is_refused() -> None:
    with refused("stack = 'encoder_decoder' is not for SmhtForSequenceClassification", "'encoder' or 'decoder'"):
        make("encoder_decoder", bos_token_id=1)


@every_stack
@every_architecture
@pytest.mark.usefixtures("silent_transformers")
def test_a_saved_model_comes_back_through_the_auto_class(stack: str, architecture: str, tmp_path: Path) -> None:
    model = make(stack, architecture)
    model.save_pretrained(tmp_path)
    loaded, report = AutoModelForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is SmhtForSequenceClassification and not any(report.values())
    assert torch.equal(loaded(random_tokens()).logits, model(random_tokens()).logits)
    assert loaded.num_labels == loaded.config.num_labels == 3


@pytest.mark.parametrize("tied", [False, True])
def test_a_language_model_is_the_start_of_a_classifier(
    tied: bool, tmp_path: Path, transformers_messages: list[str]
) -> None:
    language_model = tiny_model("shuffle", tie_word_embeddings=tied)
    language_model.save_pretrained(tmp_path)
    model, report = AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=5, output_loading_info=True)
    assert set(report["missing_keys"]) == {"score.weight"} and not report["unexpected_keys"]
    for name, parameter in language_model.model.named_parameters():
        assert torch.equal(model.model.get_parameter(name), parameter), name
    assert model.score.weight.shape == (5, 16) and model.score.weight.any()
    assert len(transformers_messages) == 1 and "MISSING" in transformers_messages.pop()
    assert model(random_tokens(), labels=torch.tensor([4, 0])).loss.isfinite()


def test_a_classifier_gives_its_base_model_away(tmp_path: Path) -> None:
    model = make("decoder")
    model.save_pretrained(tmp_path)
    base, report = type(model.model).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values())
    expected = model.model(random_tokens()).last_hidden_state
    assert torch.equal(base(random_tokens()).last_hidden_state, expected)
