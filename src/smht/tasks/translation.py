"""The task of translation: write the target of a source (seed 004's second project)."""

import io
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from smht.errors import UsageError, first_line
from smht.models.labels import IGNORED
from smht.tasks.built_in_pairs import built_in_pairs, is_built_in, pairs_again
from smht.tasks.padding import ShuffledItems, pad, padding_of
from smht.tasks.pairs import Pair, PairCorpus, hold_out_pairs, read_pairs
from smht.tasks.task import DataRequest, Examples, Item, Metric, Score, Task, TaskData
from smht.tasks.text_files import take_standard_input
from smht.tokenization import BOS_ID, EOS_ID, PAD_ID, decode_bytes, encode_document

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from smht.models import SmhtConfig, SmhtForSeq2SeqLM

DEFAULT_PAIRS = "numbers:id-sv"
_EVALUATION_BATCH = 128
_QUICK_TRANSLATIONS = 200
_SHOWN = 6
_SHOWN_LETTERS = 60


@dataclass(frozen=True)
class PairData(TaskData):
    """Pairs, divided."""

    whole: PairCorpus
    training: PairCorpus
    validation: PairCorpus
    piped: bytes | None = None

    def manifest(self) -> dict[str, dict[str, Any]]:
        """See `TaskData`."""
        parts = {"text": self.whole, "training": self.training, "validation": self.validation}
        return {name: part.to_manifest() for name, part in parts.items()}

    def describe(self, tokens: int) -> str:
        """See `TaskData`."""
        return (
            f"{self.whole.description}: {len(self.training):,} pairs to learn from ({tokens:,} tokens), "
            f"{len(self.validation):,} held out; sha256 {self.whole.sha256[:12]}"
        )

    def texts(self, errors: str) -> list[str]:
        """See `TaskData`."""
        return [text for pair in self.training.pairs for text in (pair.source, pair.target)]

    def standard_input(self) -> bytes | None:
        """See `TaskData`."""
        return self.piped

    def encode(self, tokenizer: "PreTrainedTokenizerFast", context: int, errors: str) -> "EncodedPairs":
        """See `TaskData`."""
        return EncodedPairs(self.training, self.validation, tokenizer, context)


class EncodedPairs(Examples):
    """Pairs in tokens: the source and its end token, the target and its end token.

    Args:
        training: what to learn from.
        validation: what to evaluate on.
        tokenizer: of both languages.
        context: the most tokens that a source or a target may have, the end token included.

    Raises:
        UsageError: a longer source or target.
    """

    def __init__(
        self, training: PairCorpus, validation: PairCorpus, tokenizer: "PreTrainedTokenizerFast", context: int
    ) -> None:
        self.tokenizer, self.context = tokenizer, context
        self.pairs = validation.pairs
        self.training = [_encode(tokenizer, pair, context) for pair in training.pairs]
        self.validation = [_encode(tokenizer, pair, context) for pair in validation.pairs]
        lengths = [_length(item) for item in self.training]
        self.items_per_epoch, self.tokens_per_item = len(lengths), sum(lengths) / len(lengths)
        self.validation_items = len(self.validation)
        self.token_counts = sum(lengths), sum(_length(item) for item in self.validation)
        self.timed_part = min(_QUICK_TRANSLATIONS, self.validation_items), 1.0

    def dataset(self, seed: int, length: int, batch_size: int) -> Dataset[Item]:
        """See `Examples`."""
        return ShuffledItems(self.training, [_length(item) for item in self.training], seed, length, batch_size)

    def describe_batch(self, batch_size: int) -> str:
        """See `Examples`."""
        return f"{batch_size} pairs"

    def collate(self, items: Sequence[Item]) -> dict[str, Any]:
        """Sources padded, targets as labels."""
        sources = [item["source"] for item in items]
        return {
            "input_ids": pad(sources, PAD_ID),
            "attention_mask": padding_of(sources),
            "labels": pad([item["target"] for item in items], IGNORED),
        }

    @torch.inference_mode()
    def score(self, model: nn.Module, limit: int | None = None, is_final: bool = False) -> Score:
        """Nats per target token over all held-out pairs, and how many translations are right to the letter.

        But at the end, translations are made for the first 200 pairs alone. At the end BLEU and chrF are there too.
        """
        items = self.validation[:limit]
        was_training = model.training
        model.eval()
        try:
            loss = self._loss(model, items)
            count = len(items) if is_final else min(len(items), _QUICK_TRANSLATIONS)
            translated = translate(model, self.tokenizer, [item["source"] for item in items[:count]], self.context)
        finally:
            model.train(was_training)
        return Score(loss, measure(translated, self.pairs[:count], with_scores=is_final))

    def figures(self, model: Any, new_figure: Any) -> dict[str, Any]:
        """How many translations are right, by the length of the source."""
        translations = translate(model, self.tokenizer, [item["source"] for item in self.validation], self.context)
        right: dict[int, list[bool]] = {}
        for item, pair, translation in zip(self.validation, self.pairs, translations, strict=True):
            right.setdefault((len(item["source"]) - 1) // 10, []).append(translation == pair.target)
        figure = new_figure(figsize=(7, 3.5), layout="constrained")
        panel = figure.subplots()
        groups = sorted(right)
        names = [f"{10 * group}–{10 * group + 9}\n{len(right[group]):,} pairs" for group in groups]
        panel.bar(names, [sum(right[group]) / len(right[group]) for group in groups])
        panel.set_ylim(0, 1)
        panel.set_xlabel("tokens of the source")
        panel.set_ylabel("exact matches")
        return {"by-length": figure}

    def _loss(self, model: nn.Module, items: Sequence[Item]) -> float:
        device = next(model.parameters()).device
        nats, tokens = 0.0, 0
        for start in range(0, len(items), _EVALUATION_BATCH):
            batch = {name: x.to(device) for name, x in self.collate(items[start : start + _EVALUATION_BATCH]).items()}
            logits = model(**batch).logits.float()
            nats += float(F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum").double())
            tokens += int((batch["labels"] != IGNORED).sum())
        return nats / tokens


class Translation(Task):
    """Pairs of sentences; exact matches, BLEU and chrF."""

    name = "translation"
    stacks = ("encoder_decoder",)
    preset = "smht-translation"
    tokenizer = "char"
    metrics = (
        Metric("exact_match", "exact match", "{:.2%}", "exact"),
        Metric("bleu", "BLEU", "{:.2f}", is_final=True),
        Metric("chrf", "chrF", "{:.2f}", is_final=True),
    )
    loss_unit = "nats/target token"

    def model_class(self) -> "type[SmhtForSeq2SeqLM]":
        """See `Task`."""
        from smht.models import SmhtForSeq2SeqLM

        return SmhtForSeq2SeqLM

    def read(self, request: DataRequest, stdin: BinaryIO | None = None, is_again: bool = False) -> PairData:
        """Tab-separated or JSONL files, or built-in pairs: numbers from Indonesian to Swedish by default."""
        if request.dataset:
            raise UsageError("--dataset is for language modelling: give pairs as files")
        sources = request.sources or (DEFAULT_PAIRS,)
        piped = take_standard_input(sources, stdin)
        stdin = None if piped is None else io.BytesIO(piped)
        whole = pairs_again(sources, stdin=stdin) if is_again else _read(sources, stdin)
        if request.validation_sources:
            return PairData(whole, whole, _read(request.validation_sources), piped)
        return PairData(whole, *hold_out_pairs(whole, request.validation_fraction), piped)

    def encode_for_evaluation(
        self, sources: Sequence[str], model: "SmhtForSeq2SeqLM", tokenizer: "PreTrainedTokenizerFast"
    ) -> EncodedPairs:
        """Pairs in files, or built in."""
        pairs = _read(sources)
        return EncodedPairs(pairs, pairs, tokenizer, model.config.max_position_embeddings)

    def default_batch_size(self, context: int) -> int:
        """See `Task`."""
        return 64

    def default_learning_rate(self, config: "SmhtConfig") -> float:
        """See `Task`."""
        return 3e-3

    def sample(self, model: "SmhtForSeq2SeqLM", tokenizer: "PreTrainedTokenizerFast", data: TaskData) -> str:
        """A few held-out sources with what the model makes of them."""
        assert isinstance(data, PairData)
        pairs = data.validation.pairs[:: max(1, len(data.validation) // _SHOWN)][:_SHOWN]
        context = model.config.max_position_embeddings
        sources = [_encode(tokenizer, pair, context)["source"] for pair in pairs]
        translations = translate(model, tokenizer, sources, context)
        return "\n".join(
            f"{pair.source} → {_cut(translation)}"
            + ("" if translation == pair.target else f"   (right: {pair.target})")
            for pair, translation in zip(pairs, translations, strict=True)
        )

    def next_command(self, run: str, data: TaskData) -> str:
        """Let it translate."""
        assert isinstance(data, PairData)
        return f"smht generate {shlex.quote(run)} {shlex.quote(data.validation.pairs[0].source)}"


def _read(sources: Sequence[str], stdin: BinaryIO | None = None) -> PairCorpus:
    if len(sources) == 1 and is_built_in(sources[0]):
        return built_in_pairs(sources[0])
    return read_pairs(sources, stdin=stdin)


def encode_source(tokenizer: "PreTrainedTokenizerFast", text: bytes, name: str, context: int) -> Tensor:
    """A source in tokens with its end token, `[S]`.

    Raises:
        UsageError: text that the tokenizer cannot read, or more tokens than the context.
    """
    ids = encode_document(tokenizer, text, source=name)
    if len(ids) + 1 > context:
        raise UsageError(
            f"{name} has {len(ids) + 1:,} tokens with its end token, more than the context of {context}: "
            "shorten it, or train with a larger --context"
        )
    return torch.tensor([*(int(i) for i in ids), EOS_ID])


@torch.inference_mode()
def translate(
    model: Any, tokenizer: "PreTrainedTokenizerFast", sources: Sequence[Tensor], context: int, num_beams: int = 1
) -> list[str]:
    """The model's targets.

    Args:
        model: a `SmhtForSeq2SeqLM`.
        tokenizer: the model's.
        sources: of `encode_source`.
        context: the most tokens of a target.
        num_beams: 1 takes the likeliest token at each step; more search wider.
    """
    was_training = model.training
    model.eval()
    texts: list[str] = [""] * len(sources)
    # Like lengths together; longest first, so that a lack of memory shows at once.
    order = sorted(range(len(sources)), key=lambda i: -len(sources[i]))
    try:
        for start in range(0, len(order), _EVALUATION_BATCH):
            batch = order[start : start + _EVALUATION_BATCH]
            rows = [sources[i] for i in batch]
            output = model.generate(
                pad(rows, PAD_ID).to(model.device),
                attention_mask=padding_of(rows).to(model.device),
                max_new_tokens=context - 1,
                do_sample=False,
                num_beams=num_beams,
            )
            for i, ids in zip(batch, output.tolist(), strict=True):
                texts[i] = decode_bytes(tokenizer, _inside(ids)).decode("utf-8", "replace")
    finally:
        model.train(was_training)
    return texts


def measure(translations: Sequence[str], pairs: Sequence[Pair], with_scores: bool) -> dict[str, float]:
    """Exact matches and, if asked for, sacreBLEU's BLEU and chrF; a source with several targets is right with any.

    BLEU counts word sequences of up to four words, or as long as the longest target has where that is less: without
    one sequence of four it would be 0 whatever the translations.
    """
    targets: dict[str, list[str]] = {}
    for pair in pairs:
        targets.setdefault(pair.source, []).append(pair.target)
    right = sum(text in targets[pair.source] for text, pair in zip(translations, pairs, strict=True))
    found = {"exact_match": right / len(pairs)}
    if with_scores:
        sacrebleu = _sacrebleu()
        references = [[pair.target for pair in pairs]]
        longest = max(len(pair.target.split()) for pair in pairs)
        bleu = sacrebleu.BLEU(max_ngram_order=min(4, longest))
        found["bleu"] = bleu.corpus_score(list(translations), references).score
        found["chrf"] = sacrebleu.CHRF().corpus_score(list(translations), references).score
    return found


def _sacrebleu() -> Any:
    try:
        import sacrebleu
    except ImportError as error:
        raise UsageError(f"BLEU needs sacrebleu ({first_line(error)}): pip install 'smht[tasks]'") from None
    return sacrebleu


def _encode(tokenizer: "PreTrainedTokenizerFast", pair: Pair, context: int) -> Item:
    source = encode_source(tokenizer, pair.source.encode(), f"the source {_shortened(pair.source)}", context)
    target = encode_source(tokenizer, pair.target.encode(), f"the target {_shortened(pair.target)}", context)
    return {"source": source, "target": target}


def _shortened(text: str) -> str:
    return repr(_cut(text))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_LETTERS else text[: _SHOWN_LETTERS - 1] + "…"


def _length(item: Item) -> int:
    return len(item["source"]) + len(item["target"])


def _inside(ids: list[int]) -> list[int]:
    """The tokens after the start token and before the end token."""
    ids = ids[1:] if ids[:1] == [BOS_ID] else ids
    return ids[: ids.index(EOS_ID)] if EOS_ID in ids else ids
