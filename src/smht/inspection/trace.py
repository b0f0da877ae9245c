"""Seed 000's walkthrough carried out: every step from token ids to probabilities, with formula, shape and values.

The steps are those of the seed's section 4, numbered as there, for any stack, split or dense. In a shuffled block the
tensors between 3b and 3g are in the block's own order of channels, which their notes say.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from smht.errors import UsageError, did_you_mean
from smht.inspection.display import Displayed, Table
from smht.inspection.recording import Call, Recording, evaluating, recording
from smht.layers import SplitLinear
from smht.layers.block import Block
from smht.models import SmhtPreTrainedModel

STEPS = ("0", "1", "2", *(f"3{letter}" for letter in "abcdefghijkl"), "4", "5", "6")
"""The seed's numbers; steps 3a to 3l are repeated for each block."""


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        number: the seed's, such as `3d`.
        stack: empty, or `encoder` or `decoder` where there are two.
        layer: the block; None outside the blocks.
        name: what happens.
        formula: how.
        value: what comes out.
        note: what else to know; empty if nothing.
    """

    number: str
    stack: str
    layer: int | None
    name: str
    formula: str
    value: Tensor
    note: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the value, `(B, ...)`."""
        return tuple(self.value.shape)

    @property
    def place(self) -> str:
        """Stack and block, such as `decoder, block 0`; empty outside of both."""
        return ", ".join([self.stack] * bool(self.stack) + [f"block {self.layer}"] * (self.layer is not None))

    @property
    def is_attention(self) -> bool:
        """Whether the value is attention weights, `[B, H, T, S]`."""
        return self.number in ("3d", "3h.4")

    @property
    def is_to_memory(self) -> bool:
        """Whether the value is the weights of attention to a memory."""
        return self.number == "3h.4"


@dataclass(frozen=True, repr=False)
class Trace(Displayed):
    """A forward pass, step by step.

    Attributes:
        steps: in the order in which they happen.
        outputs: what the model returned.
    """

    steps: tuple[Step, ...]
    outputs: Any

    def tables(self) -> list[Table]:
        """A row a step."""
        rows = []
        for step in self.steps:
            value = step.value.float()
            ends = (f"{float(value.min()):.4g}", f"{float(value.max()):.4g}") if value.numel() else ("", "")
            rows.append((step.number, step.place, step.name, step.formula, str(step.shape), *ends))
        headers = ("step", "where", "name", "formula", "shape", "from", "to")
        return [Table(headers, tuple(rows), words=(0, 1, 2, 3, 4))]

    def select(self, number: str | None = None, layer: int | None = None, stack: str | None = None) -> list[Step]:
        """The steps of a number, block or stack.

        Raises:
            UsageError: there are none; the message names what there is.
        """
        if number is not None and number not in STEPS and number not in {step.number for step in self.steps}:
            raise UsageError(f"there is no step {number!r}: {did_you_mean(number, STEPS)}")
        layers = sorted({step.layer for step in self.steps if step.layer is not None})
        if layer is not None and layer not in layers:
            raise UsageError(f"there is no block {layer}: they are 0 to {layers[-1]}")
        chosen = [
            step
            for step in self.steps
            if number in (None, step.number) and layer in (None, step.layer) and stack in (None, step.stack)
        ]
        if not chosen:
            raise UsageError("no step is all of that: leave one condition out")
        return chosen


@torch.no_grad()
def trace(model: SmhtPreTrainedModel, **inputs: Any) -> Trace:
    """Run `model` on `inputs` and keep every step.

    Args:
        model: any of smht's; put into evaluation mode for the time.
        **inputs: what its forward takes; `input_ids` `[B, T]` above all.

    Raises:
        UsageError: what the model refuses.
    """
    with evaluating(model), recording(model) as record:
        outputs = model(**inputs)
    return Trace(tuple(_steps(model, record, inputs, outputs)), outputs)


def _steps(model: SmhtPreTrainedModel, record: Recording, inputs: dict[str, Any], outputs: Any) -> Iterator[Step]:
    base = model.base_model_prefix + "." if hasattr(model, model.base_model_prefix) else ""
    if not model.config.is_encoder_decoder:
        yield from _stack_steps(model, record, base, "", inputs.get("input_ids"))
    else:
        yield from _stack_steps(model, record, f"{base}encoder.", "encoder", inputs.get("input_ids"))
        yield from _stack_steps(model, record, f"{base}decoder.", "decoder", inputs.get("decoder_input_ids"))
    yield from _head_steps(record, outputs)


def _stack_steps(
    model: SmhtPreTrainedModel, record: Recording, prefix: str, stack: str, ids: Tensor | None
) -> Iterator[Step]:
    if ids is not None:
        yield Step("0", stack, None, "token ids", "integers in [0, V)", ids)
    first = record[f"{prefix}layers.0"].input
    embedded = record.get(f"{prefix}embed_tokens")
    if embedded is not None:
        yield Step("1", stack, None, "token embedding", "E[id]", embedded.output)
    kind = model.config.position_embedding
    added = {"learned": "E[id] + P[position]", "sinusoidal": "√D · E[id] + PE[position]"}.get(kind, "E[id]")
    note = "" if kind in ("learned", "sinusoidal") else f"{kind} positions add nothing here"
    yield Step("2", stack, None, "position", f"x0 = {added}", first, note)
    stack_module = model.get_submodule(prefix.rstrip(".")) if prefix else model
    for layer, block in enumerate(stack_module.layers):  # pyright: ignore[reportArgumentType]
        for step in _block_steps(block, record, f"{prefix}layers.{layer}."):  # pyright: ignore[reportArgumentType]
            yield Step(step[0], stack, layer, *step[1:])
    last = record.get(f"{prefix}norm")
    if last is not None:
        yield Step("4", stack, None, "final LayerNorm", "(x − μ) / √(σ² + ε) · γ + β", last.output)


def _block_steps(block: Block, record: Recording, prefix: str) -> Iterator[tuple[str, str, str, Tensor, str]]:
    """Number, name, formula, value and note of each step of a block."""
    yield from _attention_steps(block, record, prefix, "self_attn", "input_layernorm", "abcdefgh")
    if block.cross_attn is not None:
        yield from _attention_steps(block, record, prefix, "cross_attn", "cross_attention_layernorm", None)
    yield from _feed_forward_steps(block, record, prefix)


def _attention_steps(
    block: Block, record: Recording, prefix: str, name: str, norm_name: str, letters: str | None
) -> Iterator[tuple[str, str, str, Tensor, str]]:
    attention = getattr(block, name)
    heads, width = attention.num_heads, attention.head_dim
    numbers = [f"3{letter}" for letter in letters] if letters else [f"3h.{i}" for i in range(1, 9)]
    what = "" if letters else " to the memory"
    norm, call = record[f"{prefix}{norm_name}"], record[f"{prefix}{name}"]
    query, key, value, output = (record[f"{prefix}{name}.{p}_proj"] for p in "qkvo")
    split_qkv, split_output = (isinstance(module, SplitLinear) for module in (attention.q_proj, attention.o_proj))
    order = "" if attention.input_shuffle is None else "in the block's own order of channels"
    is_pre = block.norm_placement == "pre"
    if is_pre:
        yield numbers[0], "LayerNorm", "(x − μ) / √(σ² + ε) · γ + β", norm.output, ""
    yield numbers[1], "heads", "reshape to [B, T, H, K]", query.input.unflatten(-1, (heads, width)), order
    for made, letter, projection in (("query", "Q", query), ("key", "K", key), ("value", "V", value)):
        own = f"x_h · W_{letter}[h]" if split_qkv else f"x · W_{letter}: heads read all"
        yield numbers[2], f"{made} of each head", own, projection.output.unflatten(-1, (heads, width)), order
    assert call.weights is not None
    yield numbers[3], f"attention weights{what}", "softmax(q_h · k_hᵀ / √K + mask)", call.weights, ""
    mixed = output.input.unflatten(-1, (heads, width))
    yield numbers[4], "weighted values", "A_h = softmax(S_h) · v_h", mixed, order
    yield numbers[5], "concatenation", "heads side by side", output.input, order
    formula = "A_h · W_O[h]" if split_output else "A · W_O: mixes the heads"
    yield numbers[6], f"attention output{what}", formula, call.output, ""
    residual = _residual(norm, call, is_pre)
    yield numbers[7], "residual", "x + y" if is_pre else "LayerNorm(x + y)", residual, ""


def _feed_forward_steps(block: Block, record: Recording, prefix: str) -> Iterator[tuple[str, str, str, Tensor, str]]:
    norm, call = record[f"{prefix}post_attention_layernorm"], record[f"{prefix}mlp"]
    up, down = record[f"{prefix}mlp.up_proj"], record[f"{prefix}mlp.down_proj"]
    heads = block.self_attn.num_heads
    is_split, is_pre = isinstance(block.mlp.up_proj, SplitLinear), block.norm_placement == "pre"
    order = "" if block.mlp.shuffle is None else "in the block's own order of channels"
    if is_pre:
        yield "3i", "LayerNorm", "(x − μ) / √(σ² + ε) · γ + β", norm.output, ""
    activation = block.mlp.activation
    if is_split:
        yield "3j", "heads", "reshape to [B, T, H, K]", up.input.unflatten(-1, (heads, -1)), order
        hidden, output = (x.unflatten(-1, (heads, -1)) for x in (down.input, down.output))
        yield "3k", "hidden of each head", f"u_h = {activation}(x_h · W1[h])", hidden, order
        yield "3k", "feed-forward of each head", "z_h = u_h · W2[h]", output, order
    else:
        yield "3k", "hidden", f"u = {activation}(x · W1)", down.input, ""
        yield "3k", "feed-forward", "z = u · W2", down.output, ""
    yield "3l", "residual", "x + z" if is_pre else "LayerNorm(x + z)", _residual(norm, call, is_pre), ""


def _residual(norm: Call, sublayer: Call, is_pre: bool) -> Tensor:
    """The stream after a sub-layer: the sum, or in a post-norm block its norm."""
    return norm.input + sublayer.output if is_pre else norm.output


def _head_steps(record: Recording, outputs: Any) -> Iterator[Step]:
    if "lm_head" in record:
        logits = record["lm_head"].output
        yield Step("5", "", None, "language-model head", "x · U: all chunks make one score a token", logits)
    elif "score" in record:
        logits = record["score"].output
        yield Step("5", "", None, "classification head", "x · U: all chunks make one score a label", logits)
    else:
        return
    yield Step("6", "", None, "probabilities", "softmax over the last axis", logits.float().softmax(-1))
