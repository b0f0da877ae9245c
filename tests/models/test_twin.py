import torch

from smht.models import SmhtConfig, SmhtForCausalLM, dense_twin, preset_config


def test_only_split_and_mixing_differ() -> None:
    config = preset_config(
        "smht-mini", mixing="shuffle", norm_scope="head", projection_bias=True, attn_implementation="eager"
    )
    twin = dense_twin(config)
    assert (twin.split, twin.mixing) == ((), "none")
    assert twin._attn_implementation == "eager"
    fields = config.to_dict()
    differing = {name for name, value in twin.to_dict().items() if value != fields[name]}
    assert differing == {"split", "mixing"}


def test_the_original_stays_split() -> None:
    config = preset_config("smht-mini", mixing="shuffle")
    before = config.to_dict()
    dense_twin(config)
    assert config.to_dict() == before


def test_a_twin_is_no_checkpoint_of_its_model() -> None:
    assert dense_twin(preset_config("smht-mini", name_or_path="runs/one")).name_or_path == ""


def test_a_twin_is_a_valid_configuration_of_a_dense_model() -> None:
    twin = dense_twin(preset_config("smht-mini", mixing="shuffle"))
    assert SmhtConfig.from_dict(twin.to_dict()).to_dict() == twin.to_dict()
    model = SmhtForCausalLM(twin)
    assert type(model.get_submodule("model.layers.0.self_attn.q_proj")) is torch.nn.Linear
    assert sum(parameter.numel() for parameter in model.parameters()) == 2288
