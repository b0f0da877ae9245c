import math

import pytest
import torch
import torch.nn.functional as F

from helpers.errors import refused
from smht.models import SmhtConfig, SmhtForSeq2SeqLM
from smht.models.labels import IGNORED
from smht.tasks.pairs import Pair, PairCorpus
from smht.tasks.task import DataRequest
from smht.tasks.translation import EncodedPairs, Translation, encode_source, measure, translate
from smht.tokenization import BOS_ID, EOS_ID, PAD_ID, build_tokenizer

PAIRS = [
    Pair("satu", "ett"),
    Pair("dua", "två"),
    Pair("tiga puluh", "trettio"),
    Pair("lima", "fem"),
    Pair("enam", "sex"),
]
BYTES = build_tokenizer("byte", None)


def corpus_of(pairs: list[Pair]) -> PairCorpus:
    return PairCorpus("test", ("test.tsv",), tuple(pairs))


def encoded(pairs: list[Pair] = PAIRS, context: int = 16) -> EncodedPairs:
    return EncodedPairs(corpus_of(pairs), corpus_of(pairs), BYTES, context)


def make_model(context: int = 16, seed: int = 0) -> SmhtForSeq2SeqLM:
    torch.manual_seed(seed)
    config = SmhtConfig(
        stack="encoder_decoder",
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=context,
        vocab_size=259,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        pad_token_id=PAD_ID,
    )
    return SmhtForSeq2SeqLM(config).eval()


def learn(model: SmhtForSeq2SeqLM, examples: EncodedPairs, steps: int = 150) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    items = examples.dataset(0, 5 * steps, 5)
    for step in range(steps):
        loss = model(**examples.collate([items[5 * step + i] for i in range(5)])).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_batches_are_padded_and_end_tokens_are_learned() -> None:
    batch = encoded().collate([encoded().training[i] for i in (0, 1)])
    assert batch["input_ids"].tolist() == [[*b"satu", EOS_ID], [*b"dua", EOS_ID, PAD_ID]]
    assert batch["attention_mask"].tolist() == [[1] * 5, [1] * 4 + [0]]
    assert batch["labels"].tolist() == [[*b"ett", EOS_ID, IGNORED], [*"två".encode(), EOS_ID]]


def test_the_loss_is_over_every_target_token_once() -> None:
    model, examples = make_model(), encoded()
    nats, tokens = 0.0, 0
    for item in examples.validation:
        target = item["target"]
        inputs = torch.cat([torch.tensor([BOS_ID]), target[:-1]])[None]
        with torch.no_grad():
            logits = model(input_ids=item["source"][None], decoder_input_ids=inputs).logits[0]
        nats += float(F.cross_entropy(logits, target, reduction="sum"))
        tokens += len(target)
    assert examples.score(model).loss == pytest.approx(nats / tokens, rel=1e-5)
    assert examples.token_counts == (sum(len(i["source"]) + len(i["target"]) for i in examples.training),) * 2


def test_translations_are_those_of_one_at_a_time_and_the_model_stays_in_training() -> None:
    model, examples = make_model(), encoded()
    learn(model, examples)
    sources = [item["source"] for item in examples.validation]
    model.train()
    together = translate(model, BYTES, sources, 16)
    assert model.training
    assert together == [translate(model, BYTES, [source], 16)[0] for source in sources]
    assert together == [pair.target for pair in PAIRS]
    assert translate(model, BYTES, sources, 16, num_beams=3) == together
    score = examples.score(model, is_final=True)
    assert score.metrics["exact_match"] == 1.0
    assert score.metrics["chrf"] == pytest.approx(100.0)


def test_a_target_is_never_longer_than_the_context() -> None:
    model = make_model(context=8)
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.weight[ord("a")] = 1e3 * model.model.decoder.norm.weight
        model.model.decoder.norm.bias.fill_(1.0)
    assert translate(model, BYTES, [torch.tensor([*b"dua", EOS_ID])], 8) == ["aaaaaaa"]


def test_measure() -> None:
    pairs = [Pair("a", "one two three four"), Pair("b", "x"), Pair("b", "y")]
    found = measure(["one two three four", "y", "z"], pairs, with_scores=False)
    assert found == {"exact_match": pytest.approx(2 / 3)}
    whole = measure([pair.target for pair in pairs], pairs, with_scores=True)
    assert whole["exact_match"] == 1.0
    assert whole["bleu"] == pytest.approx(100.0) and whole["chrf"] == pytest.approx(100.0)
    short = [Pair("a", "ett två"), Pair("b", "tre")]
    assert measure(["ett två", "tre"], short, with_scores=True)["bleu"] == pytest.approx(100.0)
    assert 0 < measure(["ett två", "fyra"], short, with_scores=True)["bleu"] < 100


def test_but_at_the_end_only_some_are_translated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smht.tasks.translation._QUICK_TRANSLATIONS", 2)
    counts: list[int] = []

    def count(model: object, tokenizer: object, sources: list[torch.Tensor], *args: object) -> list[str]:
        counts.append(len(sources))
        return ["x"] * len(sources)

    monkeypatch.setattr("smht.tasks.translation.translate", count)
    examples, model = encoded(), make_model()
    quick, final = examples.score(model), examples.score(model, is_final=True)
    assert counts == [2, 5]
    assert quick.loss == final.loss and math.isfinite(quick.loss)


@pytest.mark.parametrize(
    ("pair", "what"), [(Pair("s" * 16, "t"), "the source 'ssssssssssssssss'"), (Pair("s", "t" * 16), "the target 't")]
)
def test_text_longer_than_the_context(pair: Pair, what: str) -> None:
    encoded([Pair("s" * 15, "t" * 15)])
    with refused(what, "17 tokens with its end token", "context of 16", "larger --context"):
        encoded([pair])


def test_encode_source_names_the_line() -> None:
    with refused("line 3 has 6 tokens", "context of 5"):
        encode_source(BYTES, b"abcde", "line 3", 5)


def test_datasets_of_the_hub_are_for_language_modelling() -> None:
    with refused("--dataset is for language modelling"):
        Translation().read(DataRequest(dataset="some/data"))
