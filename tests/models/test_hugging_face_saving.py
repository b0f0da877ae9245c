"""`save_pretrained` and every way back: from_pretrained, the Auto classes, copies, other dtypes."""

import copy
import importlib.util
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from helpers.hugging_face import ARCHITECTURES, random_tokens, tiny, tiny_config, tiny_model, tiny_seq2seq
from smht import SmhtConfig, SmhtForCausalLM, SmhtForSeq2SeqLM, SmhtForSequenceClassification, SmhtModel
from smht.layers import ChannelShuffle
from smht.layers.position import POSITION_ENCODINGS, TabulatedPositions
from smht.models import SmhtPreTrainedModel

pytestmark = pytest.mark.usefixtures("silent_transformers")


def assert_same_model(ours: nn.Module, theirs: nn.Module) -> None:
    """Bitwise the same parameters and buffers under the same names."""
    expected, actual = dict(theirs.named_parameters()), dict(ours.named_parameters())
    expected |= dict(theirs.named_buffers())
    actual |= dict(ours.named_buffers())
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert actual[name].dtype == tensor.dtype, name
        assert torch.equal(actual[name], tensor), name


def logits(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(random_tokens()).logits


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_loading_gives_back_the_saved_model_bit_for_bit(architecture: str, tied: bool, tmp_path: Path) -> None:
    model = tiny_model(architecture, tie_word_embeddings=tied)
    model.save_pretrained(tmp_path)
    loaded, report = SmhtForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values())
    assert_same_model(loaded, model)
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) == tied
    assert torch.equal(logits(loaded), logits(model))
    assert not loaded.training
    assert loaded.config.to_diff_dict() == model.config.to_diff_dict()


@pytest.mark.parametrize("tied", [False, True])
def test_saved_file_holds_each_parameter_once_and_no_buffer(tied: bool, tmp_path: Path) -> None:
    model = tiny_model("shuffle", tie_word_embeddings=tied)
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert saved.keys() == dict(model.named_parameters()).keys()
    assert sum(tensor.numel() for tensor in saved.values()) == model.num_parameters()


def test_saving_in_shards_changes_nothing(tmp_path: Path) -> None:
    model = tiny_model()
    model.save_pretrained(tmp_path, max_shard_size="4KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert_same_model(SmhtForCausalLM.from_pretrained(tmp_path), model)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtype_is_saved_and_restored(dtype: torch.dtype, tmp_path: Path) -> None:
    model = tiny_model(projection_bias=True).to(dtype)
    model.save_pretrained(tmp_path)
    assert_same_model(SmhtForCausalLM.from_pretrained(tmp_path), model)
    single = SmhtForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert {parameter.dtype for parameter in single.parameters()} == {torch.float32}
    for name, parameter in single.named_parameters():
        assert torch.equal(parameter, model.get_parameter(name).float()), name


def test_channel_orders_are_right_straight_after_loading_on_the_meta_device(tmp_path: Path) -> None:
    tiny_model("shuffle").save_pretrained(tmp_path)
    orders = 0
    for module in SmhtForCausalLM.from_pretrained(tmp_path).modules():
        if isinstance(module, ChannelShuffle):
            order, inverse = module.compute_order()
            assert torch.equal(module.order, order) and torch.equal(module.inverse, inverse)
            orders += 1
    assert orders == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("encoding", ["sinusoidal", "rotary"])
def test_tables_of_positions_are_right_straight_after_loading(
    encoding: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    tiny_seq2seq(position_embedding=encoding).save_pretrained(tmp_path)
    loaded = SmhtForSeq2SeqLM.from_pretrained(tmp_path, dtype=dtype)
    tables = [module for module in loaded.modules() if isinstance(module, TabulatedPositions)]
    assert len(tables) == 2
    for module in tables:
        for name, table in module.compute_tables().items():
            assert getattr(module, name).dtype == dtype
            torch.testing.assert_close(getattr(module, name), table.to(dtype))


@pytest.mark.parametrize("encoding", POSITION_ENCODINGS)
def test_model_built_on_the_meta_device_can_be_initialised(encoding: str) -> None:
    with torch.device("meta"):
        model = SmhtForCausalLM(tiny_config("shuffle", projection_bias=True, position_embedding=encoding))
    model.to_empty(device="cpu")
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data.fill_(float("nan") if tensor.is_floating_point() else -1)
    model.init_weights()
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    for module in model.modules():
        if isinstance(module, ChannelShuffle):
            assert torch.equal(module.order, module.compute_order()[0])
        elif isinstance(module, TabulatedPositions):
            for name, table in module.compute_tables().items():
                assert torch.equal(getattr(module, name), table)


def test_auto_classes_find_the_models(tmp_path: Path) -> None:
    model = tiny_model()
    model.save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert type(config) is SmhtConfig
    causal = AutoModelForCausalLM.from_pretrained(tmp_path)
    base = AutoModel.from_pretrained(tmp_path)
    assert type(causal) is SmhtForCausalLM and type(base) is SmhtModel
    assert_same_model(causal, model)
    assert_same_model(base, model.model)
    assert type(AutoModelForCausalLM.from_config(config)) is SmhtForCausalLM
    assert type(AutoModel.from_config(config)) is SmhtModel


def test_causal_model_loads_a_saved_base_model_and_only_its_head_is_fresh(
    tmp_path: Path, transformers_messages: list[str]
) -> None:
    model = tiny_model("split")
    model.model.save_pretrained(tmp_path)
    loaded, report = SmhtForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert set(report["missing_keys"]) == {"lm_head.weight"}
    assert_same_model(loaded.model, model.model)
    assert len(transformers_messages) == 1 and "MISSING" in transformers_messages.pop()


MODELS: dict[str, Callable[[], SmhtPreTrainedModel]] = {
    "AutoModel": lambda: tiny(SmhtModel, "shuffle"),
    "AutoModelForCausalLM": lambda: tiny_model("shuffle"),
    "AutoModelForSeq2SeqLM": lambda: tiny_seq2seq("shuffle"),
    "AutoModelForSequenceClassification": lambda: tiny(SmhtForSequenceClassification, "shuffle", stack="encoder"),
}


LOADING_ELSEWHERE = """
import json, sys, torch, transformers
assert not any(name.partition(".")[0] == "smht" for name in sys.modules)
for auto_class, (class_name, given) in json.loads(sys.argv[1]).items():
    config = transformers.AutoConfig.from_pretrained(auto_class, trust_remote_code=True)
    loaded = getattr(transformers, auto_class).from_pretrained(auto_class, trust_remote_code=True)
    assert type(config).__name__ == type(loaded.config).__name__ == "SmhtConfig"
    assert type(loaded).__name__ == class_name
    output = loaded(**{name: torch.tensor(ids) for name, ids in given.items()}, return_dict=False)[0]
    torch.save(output.detach(), f"{auto_class}.pt")
    loaded.save_pretrained(f"{auto_class}-again")
"""


@pytest.mark.slow
def test_saved_folders_load_where_smht_was_never_imported(tmp_path: Path) -> None:
    models = {auto_class: make() for auto_class, make in MODELS.items()}
    for auto_class, model in models.items():
        model.save_pretrained(tmp_path / auto_class)
    given = {auto_class: {"input_ids": random_tokens().tolist()} for auto_class in MODELS}
    given["AutoModelForSeq2SeqLM"]["decoder_input_ids"] = random_tokens(2, 3).tolist()
    told = json.dumps({auto_class: (type(models[auto_class]).__name__, given[auto_class]) for auto_class in MODELS})
    # One process for all: each imports PyTorch and transformers anew.
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", LOADING_ELSEWHERE, told],
        cwd=tmp_path,
        env={**os.environ, "HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    for auto_class, model in models.items():
        tensors = {name: torch.tensor(ids) for name, ids in given[auto_class].items()}
        expected = model(**tensors, return_dict=False)[0]
        assert torch.equal(torch.load(tmp_path / f"{auto_class}.pt", weights_only=True), expected)
        assert_same_model(type(model).from_pretrained(tmp_path / f"{auto_class}-again"), model)
        assert (tmp_path / f"{auto_class}-again" / "modeling.py").exists()


AUTO_CLASSES = {"AutoConfig", *MODELS}


def test_saved_configuration_names_the_code_beside_it(tmp_path: Path) -> None:
    tiny_model("split").save_pretrained(tmp_path)
    auto_map = json.loads((tmp_path / "config.json").read_text())["auto_map"]
    assert auto_map.keys() == AUTO_CLASSES
    for place in auto_map.values():
        file, class_name = place.split(".")
        spec = importlib.util.spec_from_file_location(f"saved_{file}", tmp_path / f"{file}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        assert getattr(module, class_name).__name__ == class_name


def test_every_class_names_the_code_of_every_auto_class(tmp_path: Path) -> None:
    models = (tiny_seq2seq(), tiny(SmhtForSequenceClassification, stack="encoder"), tiny(SmhtModel))
    for number, model in enumerate(models):
        model.save_pretrained(tmp_path / str(number))
        assert json.loads((tmp_path / str(number) / "config.json").read_text())["auto_map"].keys() == AUTO_CLASSES
        assert {path.name for path in (tmp_path / str(number)).glob("*.py")} == {"configuration.py", "modeling.py"}


def test_saving_into_a_file_leaves_it_alone(tmp_path: Path, transformers_messages: list[str]) -> None:
    (tmp_path / "notes").write_text("mine")
    tiny_model().save_pretrained(tmp_path / "notes")
    assert (tmp_path / "notes").read_text() == "mine"
    assert "should be a directory, not a file" in transformers_messages.pop()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_deepcopy_is_the_same_model_with_tensors_of_its_own(architecture: str) -> None:
    model = tiny_model(architecture)
    twin = copy.deepcopy(model)
    assert_same_model(twin, model)
    assert torch.equal(logits(twin), logits(model))
    with torch.no_grad():
        twin.model.embed_tokens.weight.add_(1)
    assert not torch.equal(logits(twin), logits(model))
    assert (twin.lm_head.weight is twin.model.embed_tokens.weight) == model.config.tie_word_embeddings


def test_pickled_configuration_and_model_come_back() -> None:
    model = tiny_model("shuffle")
    assert pickle.loads(pickle.dumps(model.config)) == model.config
    assert_same_model(pickle.loads(pickle.dumps(model)), model)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 0.02), (torch.bfloat16, 0.15)])
def test_half_precision_stays_near_single(architecture: str, dtype: torch.dtype, tolerance: float) -> None:
    model = tiny_model(architecture)
    single = logits(model)
    half = logits(model.half() if dtype == torch.float16 else model.bfloat16())
    assert half.dtype == dtype
    assert (half.float() - single).norm() < tolerance * single.norm()
    assert all(not buffer.is_floating_point() for buffer in model.buffers())
