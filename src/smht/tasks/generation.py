"""Text out of a language model, piece by piece."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from smht.errors import UsageError
from smht.tokenization import BOS_ID, EOS_ID, StreamDecoder, encode_document

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from smht.models import SmhtForCausalLM


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Attributes:
        temperature: divides the logits; 0 takes the likeliest token.
        top_k: only the `top_k` likeliest tokens; None for all.
        top_p: only the likeliest tokens that together have this probability; None for all.
        max_new_tokens: how many tokens to add.
        min_new_tokens: how many before the text may end.
        seed: of the choice.
    """

    temperature: float = 0.8
    top_k: int | None = None
    top_p: float | None = None
    max_new_tokens: int = 256
    min_new_tokens: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise UsageError(
                f"temperature = {self.temperature} must be at least 0 and finite (0 takes the likeliest token)"
            )
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"top_k = {self.top_k} must be at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UsageError(f"top_p = {self.top_p} must be above 0 and at most 1")
        if self.max_new_tokens < 1:
            raise UsageError(f"max_new_tokens = {self.max_new_tokens} must be at least 1")
        if not 0 <= self.min_new_tokens <= self.max_new_tokens:
            raise UsageError(
                f"min_new_tokens = {self.min_new_tokens} must be from 0 to max_new_tokens = {self.max_new_tokens}"
            )
        if not 0 <= self.seed < 2**64:
            raise UsageError(f"seed = {self.seed} must be at least 0 and below 2^64")


def encode_prompt(tokenizer: "PreTrainedTokenizerFast", prompt: bytes) -> list[int]:
    """The begin token and the prompt's tokens."""
    ids = encode_document(tokenizer, prompt, source="the prompt") if prompt else []
    return [BOS_ID, *(int(i) for i in ids)]


def stream_text(
    model: "SmhtForCausalLM", tokenizer: "PreTrainedTokenizerFast", prompt: list[int], sampling: Sampling
) -> Iterator[str]:
    """Continue a prompt until an end token or `max_new_tokens`.

    Text may grow longer than the context: when it is full, the model goes on from the newest half of it.

    Args:
        model: in evaluation mode, and not changed before the text is whole.
        tokenizer: the model's.
        prompt: token ids; of a prompt longer than the context, the model sees the end.
        sampling: how tokens are chosen.

    Yields:
        Text as soon as its characters are complete; the prompt is not repeated.
    """
    context = model.config.max_position_embeddings
    decoder = StreamDecoder(tokenizer)
    never = torch.tensor([i for i in tokenizer.all_special_ids if i != EOS_ID], dtype=torch.long)
    generator = torch.Generator().manual_seed(sampling.seed)
    ids = prompt if len(prompt) <= context else prompt[-max(1, context // 2) :]
    left = sampling.max_new_tokens
    while left > 0:
        count, must = min(left, context - len(ids) + 1), left - sampling.max_new_tokens + sampling.min_new_tokens
        for token in _continue(model, ids, count, must, never, sampling, generator):
            if token == EOS_ID:
                yield decoder.flush()
                return
            ids = [*ids, token]
            left -= 1
            yield decoder.push(token)
        ids = ids[-max(1, context // 2) :]
    yield decoder.flush()


@torch.inference_mode()
def _continue(
    model: "SmhtForCausalLM",
    ids: list[int],
    count: int,
    must: int,
    never: Tensor,
    sampling: Sampling,
    generator: torch.Generator,
) -> Iterator[int]:
    """`count` more tokens, the first `must` of them not the end, with a cache; nothing outgrows the context."""
    from smht.models.cache_argument import named_cache

    cache, device, steps = model.new_cache(), model.device, None
    inputs = torch.tensor(ids, device=device)
    for number in range(count):
        if steps is None:
            logits = model(input_ids=inputs[None], use_cache=True, **named_cache(cache), logits_to_keep=1).logits[:, -1]
        else:
            logits = steps(inputs)
        logits = logits[0].float().cpu()
        logits.index_fill_(0, never, -torch.inf)
        if number < must:
            logits[EOS_ID] = -torch.inf
        token = choose(logits, sampling, generator)
        yield token
        inputs = torch.tensor([token], device=device)
        if number == 0:
            steps = model.token_steps(cache, count - 1)


def choose(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """One token id out of logits `[V]`.

    Raises:
        UsageError: logits that are not numbers, or infinite.
    """
    highest, likeliest = logits.max(-1)
    if not math.isfinite(highest):
        raise UsageError(
            "the model gives scores that are no numbers (nan or infinite), as after a training that diverged; "
            "take an earlier checkpoint or another run"
        )
    if sampling.temperature == 0:
        return int(likeliest)
    # Distances to the likeliest token, in float64, bear any temperature: none of them becomes infinity minus itself.
    scores = (logits - highest).double() / sampling.temperature
    shares = torch.softmax(_restrict(scores, sampling), dim=-1).cumsum(-1)
    # One random number, where `torch.multinomial` draws one for each token of the vocabulary.
    place = torch.rand(1, dtype=torch.float64, generator=generator) * shares[-1]
    return int(torch.searchsorted(shares, place, right=True))


def _restrict(scores: Tensor, sampling: Sampling) -> Tensor:
    """Transformers' own top-k and top-p."""
    from transformers import TopKLogitsWarper, TopPLogitsWarper

    scores = scores[None]
    no_ids = torch.empty(1, 0, dtype=torch.long)
    if sampling.top_k is not None:
        scores = TopKLogitsWarper(sampling.top_k)(no_ids, scores)  # pyright: ignore[reportArgumentType]
    if sampling.top_p is not None and sampling.top_p < 1:
        scores = TopPLogitsWarper(sampling.top_p)(no_ids, scores)  # pyright: ignore[reportArgumentType]
    return scores[0]
