"""The LSTM encoder-decoder with attention that Transformers took the place of (seed 004; arXiv:1508.04025).

Everything that computes is torch.nn's. It takes and gives what `SmhtForSeq2SeqLM` does, so that both are trained and
measured by the same code. Shapes: `B` batch, `S` source tokens, `T` target tokens, `D` width, `V` vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from smht.errors import UsageError
from smht.models.labels import IGNORED, shift_right


@dataclass(frozen=True)
class LstmOutput:
    """Logits `[B, T, V]` and, where labels were given, the mean cross-entropy in nats."""

    logits: Tensor
    loss: Tensor | None = None


class LstmForSeq2Seq(nn.Module):
    """Bidirectional encoder; decoder whose every step attends to the source (Luong's dot product).

    Args:
        vocab_size: `V`, shared by source and target.
        hidden_size: `D`, even: each direction of the encoder has half.
        num_layers: of encoder and decoder.
        bos_token_id: what a target begins with.
        eos_token_id: what ends one.
        pad_token_id: fills up rows.

    Raises:
        UsageError: an odd width.
    """

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        num_layers: int,
        bos_token_id: int,
        eos_token_id: int,
        pad_token_id: int,
    ) -> None:
        super().__init__()
        if hidden_size % 2:
            raise UsageError(f"hidden_size = {hidden_size} must be even: each direction of the encoder has half")
        self.bos_token_id, self.eos_token_id, self.pad_token_id = bos_token_id, eos_token_id, pad_token_id
        self.embed_tokens = nn.Embedding(vocab_size, hidden_size)
        self.encoder = nn.LSTM(hidden_size, hidden_size // 2, num_layers, batch_first=True, bidirectional=True)
        self.decoder = nn.LSTM(hidden_size, hidden_size, num_layers, batch_first=True)
        self.combine = nn.Linear(2 * hidden_size, hidden_size)
        self.lm_head = nn.Linear(hidden_size, vocab_size, bias=False)
        self.lm_head.weight = self.embed_tokens.weight
        nn.init.normal_(self.embed_tokens.weight, std=hidden_size**-0.5)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embed_tokens.weight.device

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> LstmOutput:
        """Logits for every label and their mean cross-entropy.

        Args:
            input_ids: `[B, S]`.
            attention_mask: `[B, S]`, 1 at tokens and 0 at padding on the right.
            labels: `[B, T]`, the target with its end token; -100 at padding.
        """
        memory, state = self._encode(input_ids, attention_mask)
        inputs = shift_right(labels, self.bos_token_id, self.pad_token_id)
        logits, _ = self._decode(inputs, state, memory, attention_mask)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
        return LstmOutput(logits, loss)

    @torch.no_grad()
    def generate(self, input_ids: Tensor, attention_mask: Tensor, max_new_tokens: int, **_: Any) -> Tensor:
        """Greedy targets `[B, 1 + new]`, the start token first; rows that have ended go on with padding."""
        memory, state = self._encode(input_ids, attention_mask)
        token = input_ids.new_full((len(input_ids), 1), self.bos_token_id)
        tokens, has_ended = [token], torch.zeros_like(token, dtype=torch.bool)
        for _step in range(max_new_tokens):
            logits, state = self._decode(token, state, memory, attention_mask)
            token = logits.argmax(-1).masked_fill(has_ended, self.pad_token_id)
            tokens.append(token)
            has_ended = has_ended | (token == self.eos_token_id)
            if has_ended.all():
                break
        return torch.cat(tokens, dim=1)

    def _encode(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The memory `[B, S, D]`, and the decoder's first state: both directions' last ones side by side."""
        lengths = attention_mask.sum(-1).cpu()
        packed = pack_padded_sequence(self.embed_tokens(input_ids), lengths, batch_first=True, enforce_sorted=False)
        output, state = self.encoder(packed)
        memory, _ = pad_packed_sequence(output, batch_first=True, total_length=input_ids.shape[1])
        hidden, cell = (torch.cat([x[0::2], x[1::2]], dim=-1) for x in state)
        return memory, (hidden, cell)

    def _decode(
        self, inputs: Tensor, state: tuple[Tensor, Tensor], memory: Tensor, attention_mask: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        output, state = self.decoder(self.embed_tokens(inputs), state)
        mask = attention_mask[:, None, :].bool()
        context = F.scaled_dot_product_attention(output, memory, memory, attn_mask=mask)
        combined = torch.tanh(self.combine(torch.cat([output, context], dim=-1)))
        return self.lm_head(combined), state


def lstm_of_size(parameters: int, vocab_size: int, num_layers: int, **token_ids: int) -> LstmForSeq2Seq:
    """The widest `LstmForSeq2Seq` with at most that many parameters.

    Raises:
        UsageError: not even the narrowest has so few.
    """
    best: LstmForSeq2Seq | None = None
    width = 2
    while True:
        with torch.device("meta"):
            model = LstmForSeq2Seq(vocab_size, width, num_layers, **token_ids)
        if sum(weight.numel() for weight in model.parameters()) > parameters:
            break
        best, width = model, width + 2
    if best is None:
        raise UsageError(f"no LSTM has as few as {parameters:,} parameters with a vocabulary of {vocab_size:,}")
    return LstmForSeq2Seq(vocab_size, width - 2, num_layers, **token_ids)
