"""A model that is looked at, with what turns text into its tokens and back."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from smht.errors import UsageError
from smht.explorer.head_changes import head_names
from smht.inspection import Drop, DropLineage, edited_heads
from smht.inspection.ablation import describe
from smht.inspection.display import visible
from smht.inspection.head_edits import HeadEdit, ModelHeads
from smht.models import SmhtForCausalLM, SmhtForSequenceClassification, SmhtPreTrainedModel, preset_config
from smht.tasks.model_inputs import model_inputs, parse_ids, token_names
from smht.training.run_folder import WEIGHTS, RunFolder

PRESET = "smht-mini"
"""What is shown where no run is named: seed 000's walkthrough."""
PRESET_IDS = "17, 52, 3, 88"
_TEXTS = {
    "language-modelling": "for i in range(3):",
    "classification": "a film to see twice",
    "translation": "satu",
}


class Subject:
    """One model under the glass.

    Args:
        name: what the page calls it.
        model: in evaluation mode.
        tokenizer: the model's; without one, texts are lists of token ids.
        folder: the run that it came from.
        first_text: what the page opens with.
    """

    def __init__(
        self,
        name: str,
        model: SmhtPreTrainedModel,
        tokenizer: Any = None,
        folder: Path | None = None,
        first_text: str = PRESET_IDS,
    ) -> None:
        self.name = name
        self.model: Any = model
        self.tokenizer = tokenizer
        self.folder = folder
        self.first_text = first_text
        self._lock = threading.Lock()
        self._written_at = self._weights_time()

    @property
    def context(self) -> int:
        """How many tokens the model can read."""
        return self.model.config.max_position_embeddings

    @property
    def has_two_stacks(self) -> bool:
        """Whether it reads one text and writes another."""
        return self.model.config.is_encoder_decoder

    @property
    def writes(self) -> bool:
        """Whether it gives a next token."""
        return hasattr(self.model, "lm_head")

    @property
    def labels_texts(self) -> bool:
        """Whether it gives a text one of several labels."""
        return isinstance(self.model, SmhtForSequenceClassification)

    @property
    def description(self) -> str:
        """The architecture in a line."""
        config = self.model.config
        split = ", ".join(name.replace("_", "-") for name in config.split)
        blocks = config.num_hidden_layers
        return (
            f"{sum(p.numel() for p in self.model.parameters()):,} parameters: {blocks} block{'s' * (blocks != 1)} of "
            f"width {config.hidden_size}, {config.num_attention_heads} heads, "
            + (f"split: {split}" if split else "dense")
        )

    @cached_property
    def heads(self) -> dict[str, Drop | DropLineage]:
        """What can be switched off, by name."""
        return head_names(self.model)

    @contextmanager
    def edited(self, edits: Sequence[HeadEdit], statistics: str, reference: Mapping[str, Tensor]) -> Iterator[None]:
        """The model with edited heads, for one thread at a time: looking inside puts hooks into it.

        Args:
            edits: none for the model as it is.
            statistics: `live` or `held`, see `smht.inspection.edited_heads`.
            reference: the inputs of the run that frozen heads hold the mean of.

        Raises:
            UsageError: edits that do not fit the model or each other.
        """
        with self._lock, edited_heads(self.model, edits, statistics, reference) if edits else nullcontext():
            yield

    def describe_edits(self, edits: Sequence[HeadEdit], statistics: str) -> str:
        """What was done to which heads, and where the norms' statistics come from, in the library's words."""
        heads = ModelHeads(self.model)
        done = "; ".join(heads.describe(edit) for edit in edits)
        return f"Edits: {done}; {describe(statistics, heads.describe_parts())}."

    def inputs(self, text: str, target: str | None = None) -> dict[str, Tensor]:
        """A text as the model's arguments, `[1, T]`.

        Args:
            text: or, without a tokenizer, token ids separated by commas.
            target: for two stacks, what has been written so far.

        Raises:
            UsageError: nothing to read, text that the tokenizer cannot read, or more tokens than the context.
        """
        if self.tokenizer is None:
            if not text.strip():
                raise UsageError(f"there is nothing to read: type token ids, such as {PRESET_IDS}")
            ids = parse_ids(text.strip().rstrip(","), self.model.config.vocab_size)
            inputs = {"input_ids": torch.tensor([ids])}
        elif not text:
            raise UsageError("the text is empty: type something")
        else:
            inputs = model_inputs(self.model, self.tokenizer, text, (target or "") if self.has_two_stacks else None)
        for ids in inputs.values():
            if ids.shape[1] > self.context:
                raise UsageError(
                    f"the text has {ids.shape[1]:,} tokens, special ones included, and {self.name} reads at most "
                    f"{self.context:,}: take {ids.shape[1] - self.context:,} away"
                )
        return inputs

    def labels(self, ids: Sequence[int]) -> list[str]:
        """Each token as a reader sees it: text, white space made visible, bytes that are no text in hexadecimal."""
        return [self._label(int(i)) for i in ids]

    @cached_property
    def outcomes(self) -> list[str]:
        """What the head's scores are for, `[V]`: tokens or labels, each with a name of its own."""
        if self.labels_texts:
            return [str(self.model.config.id2label[number]) for number in range(self.model.config.num_labels)]
        names = self.labels(range(self.model.config.vocab_size))
        seen: set[str] = set()
        for number, name in enumerate(names):
            names[number] = name if name not in seen else f"{name} ({number})"
            seen.add(names[number])
        return names

    @cached_property
    def outcome_numbers(self) -> dict[str, int]:
        """The way back from `outcomes`."""
        return {name: number for number, name in enumerate(self.outcomes)}

    def notice(self) -> str | None:
        """What to know about the folder since the model was read from it; None if nothing."""
        if self.folder is None or self._written_at is None:
            return None
        now = self._weights_time()
        if now is None:
            return f"the run {self.folder} is no longer there: this is the model as it was read from it"
        if now != self._written_at:
            return f"the run {self.folder} has other weights now: start the explorer anew to see them"
        return None

    def _weights_time(self) -> int | None:
        try:
            return None if self.folder is None else (self.folder / WEIGHTS).stat().st_mtime_ns
        except OSError:
            return None

    def _label(self, index: int) -> str:
        if self.tokenizer is None:
            return str(index)
        if index >= len(self.tokenizer):
            return f"no token ({index})"
        return visible(token_names(self.tokenizer, [index])[0])


def preset_subject(name: str = PRESET, seed: int = 0) -> Subject:
    """A decoder of the preset's architecture with random weights.

    Raises:
        UsageError: an unknown preset.
    """
    config = preset_config(name)
    torch.manual_seed(seed)
    return Subject(f"{name}, random weights", SmhtForCausalLM(config).eval())


def run_subject(folder: Path) -> Subject:
    """The best model of a run.

    Raises:
        UsageError: there is no such run, or it is damaged.
    """
    run = RunFolder(folder)
    model, tokenizer = run.load_model(), run.load_tokenizer()
    return Subject(str(folder), model, tokenizer, folder, _TEXTS.get(run.task, "one two three"))
