import pytest
import torch

from helpers.errors import refused
from smht.models import SmhtConfig, SmhtForCausalLM
from smht.training import memory
from smht.training.memory import least_bytes, refuse_if_too_large

CONFIG = SmhtConfig(vocab_size=300, hidden_size=64, num_attention_heads=4, num_hidden_layers=2)


class KeptForBackward:
    """Adds up the bytes of what autograd keeps, each storage once."""

    def __init__(self) -> None:
        self.storages: dict[int, int] = {}

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        self.storages[storage.data_ptr()] = storage.nbytes()
        return tensor


@pytest.mark.parametrize(("batch_size", "context"), [(1, 8), (4, 64), (16, 128)])
def test_the_bound_is_below_what_training_takes(batch_size: int, context: int) -> None:
    model, kept = SmhtForCausalLM(CONFIG), KeptForBackward()
    ids = torch.randint(300, (batch_size, context))
    with torch.autograd.graph.saved_tensors_hooks(kept, lambda tensor: tensor):
        model(ids, labels=ids, skip_logits=True)
    used = 16 * model.num_parameters() + sum(kept.storages.values())
    bound = least_bytes(CONFIG, batch_size, context)
    assert 0.5 * used < bound <= used


def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = least_bytes(CONFIG, 4, 64)
    monkeypatch.setattr(memory, "_free_bytes", lambda device: needed)
    refuse_if_too_large(CONFIG, 4, 64, "cpu")
    monkeypatch.setattr(memory, "_free_bytes", lambda device: needed - 1)
    with refused("batches of 4 × 64 tokens", "of memory, and cpu has", "--batch-size"):
        refuse_if_too_large(CONFIG, 4, 64, "cpu")
