"""A run and a text, as the commands that look inside take them."""

from pathlib import Path
from typing import Any

from smht.errors import UsageError


def load(run: Path) -> tuple[Any, Any]:
    """The run's model and tokenizer.

    Raises:
        UsageError: there is no such run, or it is damaged.
    """
    from smht.training.run_folder import RunFolder

    folder = RunFolder(run)
    return folder.load_model(), folder.load_tokenizer()


def model_inputs(model: Any, tokenizer: Any, text: str, target: str | None = None) -> dict[str, Any]:
    """A text as the model reads it, `[1, T]`: after a begin token, or as a source with an end token and a target.

    Raises:
        UsageError: an empty text, text that the tokenizer cannot read, or a target for a model that writes none.
    """
    import torch

    from smht.tokenization import BOS_ID, EOS_ID

    two_stacks = model.config.is_encoder_decoder
    if target is not None and not two_stacks:
        raise UsageError("--target is for runs of an encoder-decoder")
    if not text:
        raise UsageError("the text is empty")
    ids = encode(tokenizer, text)
    if not two_stacks:
        return {"input_ids": torch.tensor([[BOS_ID, *ids]])}
    written = encode(tokenizer, target) if target else []
    return {
        "input_ids": torch.tensor([[*ids, EOS_ID]]),
        "decoder_input_ids": torch.tensor([[BOS_ID, *written]]),
    }


def encode(tokenizer: Any, text: str) -> list[int]:
    """Token ids without begin and end."""
    from smht.tokenization import encode_document

    # An argument that was no UTF-8 reaches Python as surrogates; its bytes are what the user typed.
    data = text.encode("utf-8", "surrogateescape")
    return [int(i) for i in encode_document(tokenizer, data, source="the text")]


def token_names(tokenizer: Any, ids: list[int]) -> list[str]:
    """Each token as text, special ones by their names."""
    from smht.tokenization import decode_bytes

    special = dict(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True))
    return [special.get(i) or decode_bytes(tokenizer, [i]).decode("utf-8", "replace") for i in ids]
