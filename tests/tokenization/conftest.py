import pytest

from smht.tokenization import TOKENIZERS, build_tokenizer

TRAINING_TEXT = "def naïve(x):\n    return 'Ω 你好 🙂' if x else \"<eos>\"\n\n\n" * 20


@pytest.fixture(scope="session")
def tokenizers():
    return {kind: build_tokenizer(kind, [TRAINING_TEXT, "más café\r\n" * 5]) for kind in TOKENIZERS}


@pytest.fixture(params=sorted(TOKENIZERS))
def tokenizer(request, tokenizers):
    return tokenizers[request.param]
