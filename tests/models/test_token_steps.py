"""Steps from token to token: the logits of `forward`, and none where `forward` has to be called."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedTokenizerFast, StaticCache

from helpers.errors import refused
from helpers.fused_decoding import begun, composed
from helpers.hugging_face import CONTEXT, random_tokens, tiny_config, tiny_model
from smht import SmhtForCausalLM, ops
from smht.models.cache_argument import CACHE_ARGUMENT
from smht.tasks.generation import Sampling, stream_text
from smht.tokenization import build_tokenizer

pytestmark = pytest.mark.usefixtures("silent_transformers", "cpu_kernels")


@pytest.mark.parametrize("encoding", ["learned", "sinusoidal", "rotary", "none"])
@pytest.mark.parametrize("architecture", ["split", "shuffle", "head-norm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_logits_and_cache_are_those_of_forward(
    encoding: str, architecture: str, dtype: torch.dtype, calls: list[int]
) -> None:
    model = tiny_model(architecture, position_embedding=encoding).to(dtype)
    ours, theirs = begun(model), begun(model)
    # As many as the context has, so that memory is made anew on the way.
    next_tokens = random_tokens(2, CONTEXT - 6, seed=1)
    steps = model.token_steps(ours, CONTEXT - 6)
    assert steps is not None
    for tokens in next_tokens.unbind(1):
        expected = model(tokens[:, None], **{CACHE_ARGUMENT: theirs}).logits[:, 0]
        assert torch.equal(steps(tokens), expected)
    assert calls == [2] * 2 * (CONTEXT - 6)
    assert ours.get_seq_length() == CONTEXT
    for mine, other in zip(ours.layers, theirs.layers, strict=True):
        assert torch.equal(mine.keys, other.keys) and torch.equal(mine.values, other.values)


@torch.inference_mode()
def test_forward_goes_on_from_where_steps_ended() -> None:
    model = tiny_model()
    cache, next_tokens = begun(model), random_tokens(2, 3, seed=1)
    steps = model.token_steps(cache, 2)
    assert steps is not None
    for tokens in next_tokens[:, :2].unbind(1):
        steps(tokens)
    got = model(next_tokens[:, 2:], **{CACHE_ARGUMENT: cache}).logits[:, -1]
    expected = model(torch.cat([random_tokens(2, 6, seed=3), next_tokens], 1)).logits[:, -1]
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_there_are_as_many_steps_as_the_context_has_room_for() -> None:
    model = tiny_model()
    assert model.token_steps(begun(model), CONTEXT - 6) is not None
    assert model.token_steps(begun(model), CONTEXT - 5) is None


@pytest.mark.parametrize("position_embedding", ["relative", "learned"])
@pytest.mark.parametrize("changes", [{"split": ()}, {"attn_implementation": "eager"}, {}], ids=str)
@torch.no_grad()
def test_models_that_do_not_decode_in_one_call_have_none(position_embedding: str, changes: dict[str, Any]) -> None:
    model = tiny_model("split", position_embedding=position_embedding, **changes)
    is_taken = position_embedding == "learned" and not changes
    assert (model.token_steps(begun(model, model.new_cache()), 3) is not None) is is_taken
    # Nor over the cache of those that do.
    assert (model.token_steps(begun(model), 3) is not None) is is_taken


class Scaled(SmhtForCausalLM):
    """A model with code of its own."""

    def forward(self, *arguments: Any, **options: Any) -> Any:
        outputs = super().forward(*arguments, **options)
        outputs.logits = outputs.logits * 2
        return outputs


@torch.no_grad()
def test_a_class_of_others_has_none() -> None:
    model = Scaled(tiny_config("split")).eval()
    assert model.token_steps(begun(model), 3) is None


def give_forward(model: SmhtForCausalLM) -> None:
    forward = model.forward
    model.forward = lambda *arguments, **options: forward(*arguments, **options)


CHANGES: dict[str, Callable[[SmhtForCausalLM], object]] = {
    "training": lambda model: model.train(),
    "dropout in training": lambda model: model.model.layers[1].dropout.train(),
    "a hook on the model": lambda model: model.register_forward_hook(lambda *_: None),
    "a hook before the model": lambda model: model.register_forward_pre_hook(lambda *_: None),
    "a hook on its body": lambda model: model.model.register_forward_hook(lambda *_: None),
    "a hook on a projection": lambda model: model.model.layers[0].mlp.up_proj.register_forward_hook(lambda *_: None),
    "a forward of its own": give_forward,
    "compilation": lambda model: setattr(model, "_compiled_call_impl", model.forward),
    "numbers of two types": lambda model: model.model.norm.bfloat16(),  # pyright: ignore[reportOptionalMemberAccess]
    "hidden states by the configuration": lambda model: setattr(model.config, "output_hidden_states", True),
    "the reference": lambda _: ops.set_backend("reference"),
}


@pytest.mark.parametrize("name", CHANGES)
@torch.no_grad()
def test_a_model_of_which_more_is_asked_has_none(name: str) -> None:
    model = tiny_model("split")
    cache = begun(model)
    assert model.token_steps(cache, 3) is not None
    CHANGES[name](model)
    assert model.token_steps(cache, 3) is None


@torch.no_grad()
def test_modes_and_caches_that_do_not_go_with_the_kernel_have_none() -> None:
    model = tiny_model("split")
    assert model.token_steps(model.new_cache(), 3) is None  # empty
    assert model.token_steps(None, 3) is None
    for cache in (DynamicCache(), StaticCache(config=model.config, max_cache_len=20)):
        assert model.token_steps(begun(model, cache), 3) is None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model.token_steps(begun(model), 3) is None
    with torch.enable_grad():
        assert model.token_steps(begun(model), 3) is None


@torch.no_grad()
def test_modules_around_the_blocks_are_called_as_forward_calls_them() -> None:
    model = tiny_model("split", hidden_dropout=0.5)
    seen: list[Any] = []
    for module in (model.model.embed_tokens, model.model.dropout, model.lm_head):
        assert module is not None
        module.register_forward_hook(lambda _, given, output: seen.append((given[0].shape, output.shape)) or 2 * output)
    cache, other = begun(model), begun(model)
    steps = model.token_steps(cache, 3)
    assert steps is not None
    seen.clear()
    logits = steps(torch.tensor([1, 2]))
    by_steps = list(seen)
    seen.clear()
    assert torch.equal(logits, model(torch.tensor([[1], [2]]), **{CACHE_ARGUMENT: other}).logits[:, 0])
    assert by_steps == seen and len(seen) == 3
    # In training it drops, as in `forward`.
    model.model.dropout.train()
    assert not torch.equal(steps(torch.tensor([1, 2])), steps(torch.tensor([1, 2])))


@pytest.mark.parametrize("encoding", ["learned", "rotary", "none"])
@torch.no_grad()
def test_steps_that_were_not_asked_for_are_refused(encoding: str) -> None:
    model = tiny_model(position_embedding=encoding)
    assert model.token_steps(begun(model), -1) is None
    for count, tokens_back in ((0, 0), (2, 1), (2, 6)):
        cache = begun(model)
        steps = model.token_steps(cache, count)
        assert steps is not None
        if tokens_back:
            cache.crop(-tokens_back)
        with refused(f"{count} tokens after the first 6", f"the cache holds {6 - tokens_back}"):
            steps(torch.tensor([1, 2]))


@torch.no_grad()
def test_as_many_steps_as_were_asked_for() -> None:
    model = tiny_model()
    steps = model.token_steps(begun(model), 2)
    assert steps is not None
    for _ in range(2):
        steps(torch.tensor([1, 2]))
    with refused("2 tokens after the first 6", "the cache holds 8"):
        steps(torch.tensor([1, 2]))


# In use


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer("byte", None)


@pytest.mark.parametrize("sampling", [Sampling(0, max_new_tokens=70), Sampling(1.0, max_new_tokens=70)])
def test_text_is_made_by_steps_after_one_pass_a_window(
    sampling: Sampling, tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch, calls: list[int]
) -> None:
    model = tiny_model(vocab_size=259, position_embedding="rotary")
    passes: list[int] = []
    forward = SmhtForCausalLM.forward

    def counted(self: SmhtForCausalLM, input_ids: Tensor, **options: Any) -> Any:
        passes.append(input_ids.shape[1])
        return forward(self, input_ids=input_ids, **options)

    monkeypatch.setattr(SmhtForCausalLM, "forward", counted)
    sampling = Sampling(sampling.temperature, max_new_tokens=70, min_new_tokens=70)
    text = "".join(stream_text(model, tokenizer, [1, 2, 3], sampling))
    # A window begins anew with half a context, and has one token more than fits.
    assert passes == [3, CONTEXT // 2, CONTEXT // 2, CONTEXT // 2]
    assert len(calls) == 70 - len(passes)
    calls.clear()
    assert text == composed(lambda: "".join(stream_text(model, tokenizer, [1, 2, 3], sampling)))
    assert not calls
