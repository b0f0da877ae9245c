import pytest
import torch
import torch.nn.functional as F

from helpers.errors import refused
from smht.comparison.lstm import LstmForSeq2Seq, lstm_of_size
from smht.tasks.pairs import Pair, PairCorpus
from smht.tasks.translation import EncodedPairs, translate
from smht.tokenization import BOS_ID, EOS_ID, PAD_ID, build_tokenizer

IDS = {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID, "pad_token_id": PAD_ID}
WORDS = {"satu": "ett", "dua": "två", "tiga": "tre", "lima": "fem", "enam": "sex"}


def make(width: int = 16, layers: int = 1) -> LstmForSeq2Seq:
    torch.manual_seed(0)
    return LstmForSeq2Seq(259, width, layers, **IDS).eval()


def encoded() -> EncodedPairs:
    pairs = PairCorpus("test", (), tuple(Pair(*pair) for pair in WORDS.items()))
    return EncodedPairs(pairs, pairs, build_tokenizer("byte", None), 12)


@pytest.mark.parametrize("layers", [1, 2])
def test_padding_changes_nothing(layers: int) -> None:
    model, examples = make(layers=layers), encoded()
    batch = examples.collate(examples.training)
    together = model(**batch).logits
    for row, item in enumerate(examples.training):
        alone = model(**examples.collate([item])).logits[0]
        torch.testing.assert_close(together[row, : len(alone)], alone)


def test_attention_and_loss_by_hand() -> None:
    model, examples = make(), encoded()
    item = examples.training[0]
    source, target = item["source"][None], item["target"][None]
    memory, (hidden, cell) = model.encoder(model.embed_tokens(source))
    state = tuple(torch.cat([x[0], x[1]], dim=-1)[None] for x in (hidden, cell))
    output, _ = model.decoder(model.embed_tokens(torch.cat([torch.tensor([[BOS_ID]]), target[:, :-1]], 1)), state)
    weights = (output @ memory.transpose(1, 2) / 16**0.5).softmax(-1)
    combined = torch.tanh(model.combine(torch.cat([output, weights @ memory], -1)))
    logits = combined @ model.embed_tokens.weight.T
    found = model(**examples.collate([item]))
    torch.testing.assert_close(found.logits, logits)
    torch.testing.assert_close(found.loss, F.cross_entropy(logits[0], target[0]))


def test_it_learns_what_it_is_shown_and_greedy_text_is_its_own() -> None:
    model, examples = make(32).train(), encoded()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batch = examples.collate(examples.training)
    for _ in range(120):
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert translate(model, examples.tokenizer, [item["source"] for item in examples.training], 12) == list(
        WORDS.values()
    )
    assert examples.score(model, is_final=True).metrics["exact_match"] == 1.0


@pytest.mark.parametrize("parameters", [20_000, 400_000])
def test_the_widest_that_fits(parameters: int) -> None:
    model = lstm_of_size(parameters, 259, 2, **IDS)
    width = model.embed_tokens.embedding_dim
    count, wider = (
        sum(weight.numel() for weight in LstmForSeq2Seq(259, w, 2, **IDS).parameters()) for w in (width, width + 2)
    )
    assert count <= parameters < wider


def test_sizes_that_make_no_model() -> None:
    with refused("hidden_size = 7 must be even"):
        LstmForSeq2Seq(259, 7, 1, **IDS)
    with refused("no LSTM has as few as 100 parameters"):
        lstm_of_size(100, 259, 1, **IDS)
