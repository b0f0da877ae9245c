"""What training over several ranks takes, by each way to share it: parameters, memory, bytes, messages, time.

Closed forms. `P` ranks, `N` tokens a step, `L` blocks, `D` hidden size, `X` bytes of parameters, `w = 4` bytes a
number. Bytes are those that a rank sends in a step by the algorithms of least traffic, as
`smht.distributed.traffic.Traffic` counts them:

| way | bytes that a rank sends in a step |
|---|---|
| data (DDP) | 2·X·(P−1)/P: gradients summed |
| sharded (FSDP) | (P−1)/P · (3·X of the blocks + 2·X of the rest): weights gathered, gradients dealt out |
| Megatron-style, of the dense twin | L·8·N·D·w·(P−1)/P: whole vectors summed, twice a block and pass |
| head | two numbers a token and norm, channels that a shuffle moves, the language-model head |

FSDP has a unit a block and gathers a block's weights again for the backward pass; `smht train --mesh shard=P` does so.
Under the third way embedding and head are whole on each rank.

Time is computation, and for each message its rounds times the latency, and bytes over bandwidth; nothing overlaps. A
ring takes `P − 1` rounds for a gathering, a dealing out or an exchange, and twice as many for a sum.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from smht.distributed.head_parallel import refuse_indivisible
from smht.distributed.vocabulary import joins_channels
from smht.errors import UsageError
from smht.inspection.accounting import account
from smht.layers.mixing import shuffle_order
from smht.models import SmhtConfig, dense_twin

_NUMBER = 4
_STATES = 4
"""Numbers that a trained parameter takes: itself, its gradient, and AdamW's two moments."""

_FIRST_BUCKET, _BUCKET = 1 << 20, 25 << 20
"""Bytes of the pieces in which DistributedDataParallel sums gradients, if no parameter is larger."""

_REACHED = 0.5
"""Of a large matrix product's speed: measured on CPUs, 0.47 by dense models and 0.53 to 0.57 by split ones."""

_MOST_TOKENS = 10**15
"""Of a step; what is computed from many more is no number that a float can hold."""


@dataclass(frozen=True)
class Link:
    """What ranks compute and are joined by.

    Attributes:
        bandwidth: bytes a second that a rank sends.
        latency: seconds that a message takes, however short.
        flops: floating-point operations a second that a rank reaches in training.
    """

    bandwidth: float
    latency: float
    flops: float


@dataclass(frozen=True)
class Way:
    """One way to share training.

    Attributes:
        name: `data`, `sharded`, `megatron` or `head`.
        parameters: numbers of the model on the rank that has most of them.
        memory: bytes of weights, gradients and AdamW's moments on a rank, and of weights gathered for a while;
            activations are not counted.
        bytes: sent by the rank that sends most, in a step.
        messages: collectives in a step.
        rounds: how many times the latency counts.
        compute_seconds: of a step.
        step_seconds: computation and messages.
        note: why it cannot be done, or what it is for.
        is_possible: whether it can be done; if not, nothing but name and note holds.
    """

    name: str
    parameters: int = 0
    memory: int = 0
    bytes: float = 0.0
    messages: int = 0
    rounds: int = 0
    compute_seconds: float = 0.0
    step_seconds: float = 0.0
    note: str = ""
    is_possible: bool = True


@dataclass
class _Sent:
    """Collectives of a step, added up."""

    ranks: int
    bytes: float = 0.0
    messages: int = 0
    rounds: int = 0

    def sum(self, whole: float, messages: int = 1) -> None:
        """Tensors of `whole` bytes together, summed over the ranks."""
        self._add(2 * whole * (self.ranks - 1) / self.ranks, messages, 2)

    def share(self, whole: float, messages: int = 1) -> None:
        """Tensors of `whole` bytes together, gathered or dealt out."""
        self._add(whole * (self.ranks - 1) / self.ranks, messages, 1)

    def exchange(self, sent: float) -> None:
        """What goes to other ranks."""
        self._add(sent, 1, 1)

    def _add(self, sent: float, messages: int, ways: int) -> None:
        self.bytes += sent
        self.messages += messages
        self.rounds += messages * ways * (self.ranks - 1)


def plan(config: SmhtConfig, ranks: int, batch_size: int, context: int, link: Link) -> list[Way]:
    """Every way to share the training of a language model.

    Args:
        config: of the model.
        ranks: `P`, at least 2.
        batch_size: windows a step, of all ranks together.
        context: tokens of a window.
        link: how fast ranks are, and how they are joined.

    Raises:
        UsageError: fewer than two ranks, no window, more tokens than any step takes, or no language model.
    """
    if ranks < 2:
        raise UsageError(f"ranks = {ranks}: there is nothing to share below 2")
    if batch_size < 1:
        raise UsageError(f"batch_size = {batch_size} must be at least 1")
    if config.stack != "decoder":
        raise UsageError(f"plans are for language models, and this is stack = {config.stack!r}")
    tokens = batch_size * context
    if tokens > _MOST_TOKENS:
        raise UsageError(
            f"batch_size = {batch_size} of {context} tokens is more than any step takes: give a smaller one"
        )
    return [
        _data(config, ranks, batch_size, context, link),
        _sharded(config, ranks, batch_size, context, link),
        _megatron(dense_twin(config), ranks, tokens, context, link),
        _head(config, ranks, tokens, context, link),
    ]


def _data(config: SmhtConfig, ranks: int, batch_size: int, context: int, link: Link) -> Way:
    refused = _uneven("data", batch_size, ranks)
    if refused is not None:
        return refused
    parameters = _parameters(config)
    sent = _Sent(ranks)
    size = parameters * _NUMBER
    sent.sum(size, 1 + max(0, -(-(size - _FIRST_BUCKET) // _BUCKET)))
    flops = _flops(config, batch_size * context, context) / ranks
    return _way("data", parameters, _STATES * parameters, sent, flops, link)


def _sharded(config: SmhtConfig, ranks: int, batch_size: int, context: int, link: Link) -> Way:
    refused = _uneven("sharded", batch_size, ranks)
    if refused is not None:
        return refused
    parameters, layers = _parameters(config), config.num_hidden_layers
    blocks = _block_parameters(config)
    rest = parameters - blocks
    sent = _Sent(ranks)
    sent.share(3 * blocks * _NUMBER, 3 * layers)
    sent.share(2 * rest * _NUMBER, 2)
    own = -(-parameters // ranks)
    flops = _flops(config, batch_size * context, context) / ranks
    gathered = rest + 2 * blocks // layers  # the next block's weights come while this one computes
    return _way("sharded", own, _STATES * own + gathered, sent, flops, link)


def _megatron(twin: SmhtConfig, ranks: int, tokens: int, context: int, link: Link) -> Way:
    if twin.num_attention_heads % ranks:
        return Way("megatron", note=f"{ranks} ranks do not divide {twin.num_attention_heads} heads", is_possible=False)
    parameters = _parameters(twin)
    norms = account(twin, context).part("layer norms").costs.parameters
    cut = _block_parameters(twin) - norms
    own = parameters - cut + -(-cut // ranks)
    layers = twin.num_hidden_layers
    sent = _Sent(ranks)
    sent.sum(4 * layers * tokens * twin.hidden_size * _NUMBER, 4 * layers)
    head = account(twin, context).part("language-model head").costs.multiply_adds * tokens * 6
    flops = head + (_flops(twin, tokens, context) - head) / ranks
    return _way("megatron", own, _STATES * own, sent, flops, link, "the dense twin")


def _head(config: SmhtConfig, ranks: int, tokens: int, context: int, link: Link) -> Way:
    try:
        refuse_indivisible(config, ranks)
    except UsageError as error:
        return Way("head", note=str(error), is_possible=False)
    sent = _Sent(ranks)
    norms = 2 * config.num_hidden_layers + (config.norm_placement == "pre") if config.norm_scope == "model" else 0
    for _ in range(norms):
        pair = 2 * tokens * _NUMBER
        sent.share(pair * ranks)
        sent.sum(pair)
    for moved in _moved_channels(config, ranks):
        sent.exchange(moved * tokens * _NUMBER)
        sent.exchange(moved * tokens * _NUMBER)
    _send_head(config, tokens, sent)
    sent.sum(_NUMBER)  # the gradients' norm
    own = _parameters(config) // ranks
    if _is_cut_by_vocabulary(config):
        table = config.vocab_size * config.hidden_size
        own = (_parameters(config) - table) // ranks + -(-config.vocab_size // ranks) * config.hidden_size
    return _way("head", own, _STATES * own, sent, _flops(config, tokens, context) / ranks, link)


def _moved_channels(config: SmhtConfig, ranks: int) -> Iterator[int]:
    """For each exchange of a forward pass, how many channels leave the rank that the most leave."""
    if config.mixing != "shuffle":
        return
    width = config.hidden_size // ranks
    for number in range(1, config.num_hidden_layers):
        owner = shuffle_order(config.hidden_size, config.num_attention_heads, number) // width
        kept = [int((owner[rank * width : (rank + 1) * width] == rank).sum()) for rank in range(ranks)]
        # In and out of attention and feed-forward; and of norms a head, whose chunks are the block's.
        yield from [width - min(kept)] * (8 if config.norm_scope == "head" else 4)


def _send_head(config: SmhtConfig, tokens: int, sent: _Sent) -> None:
    vocabulary, width, ranks = config.vocab_size, config.hidden_size, sent.ranks
    padded = -(-vocabulary // ranks) * ranks
    is_tied = config.tie_word_embeddings
    for _ in ("forward", "backward"):
        if _is_cut_by_vocabulary(config) or (is_tied and joins_channels(tokens, vocabulary, width, is_tied, ranks)):
            sent.share(tokens * width * _NUMBER)
            if is_tied:
                sent.exchange(padded * width / ranks * (ranks - 1) / ranks * _NUMBER)
        else:
            sent.share(tokens * padded * _NUMBER)
    sent.share(3 * tokens * _NUMBER * ranks)


def _is_cut_by_vocabulary(config: SmhtConfig) -> bool:
    """Whether a rank has some tokens' rows of the head, rather than some channels' columns."""
    return not config.tie_word_embeddings and config.vocab_size > config.hidden_size


def _way(name: str, parameters: int, states: int, sent: _Sent, flops: float, link: Link, note: str = "") -> Way:
    compute = flops / link.flops
    return Way(
        name,
        parameters=parameters,
        memory=states * _NUMBER,
        bytes=sent.bytes,
        messages=sent.messages,
        rounds=sent.rounds,
        compute_seconds=compute,
        step_seconds=compute + sent.rounds * link.latency + sent.bytes / link.bandwidth,
        note=note,
    )


def _uneven(name: str, batch_size: int, ranks: int) -> Way | None:
    if batch_size % ranks == 0:
        return None
    return Way(name, note=f"batch_size = {batch_size} cannot be dealt out evenly to {ranks} ranks", is_possible=False)


def _parameters(config: SmhtConfig) -> int:
    return account(config).total.parameters


def _block_parameters(config: SmhtConfig) -> int:
    return sum(part.costs.parameters for part in account(config).parts if part.layers is not None)


def _flops(config: SmhtConfig, tokens: int, context: int) -> float:
    """Of a training step: a multiply-add is two operations, and backward takes twice what forward does."""
    return 6.0 * account(config, context).total.multiply_adds * tokens


def measure_flops(width: int) -> float:
    """Operations a second that a model of this width reaches: a share of a product of matrices here and now."""
    from time import perf_counter

    size = max(64, min(width, 1024))
    left = torch.randn(size, size)
    times: list[float] = []
    for _ in range(5):
        began = perf_counter()
        torch.mm(left, left)
        times.append(perf_counter() - began)
    return _REACHED * 2 * size**3 / min(times)


def to_dict(ways: list[Way]) -> list[dict[str, Any]]:
    """Plain data for JSON; a way that cannot be taken has its reason alone."""
    fields = ("parameters", "memory", "bytes", "messages", "rounds", "compute_seconds", "step_seconds")
    return [
        {"name": way.name, "possible": way.is_possible, "note": way.note}
        | ({name: getattr(way, name) for name in fields} if way.is_possible else {})
        for way in ways
    ]
