"""Tells transformers' Auto classes about the models, in this process and in saved folders."""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from smht.models.configuration import SmhtConfig
from smht.models.modeling import SmhtForCausalLM, SmhtModel


def register_auto_classes() -> None:
    """Make `AutoModel.from_pretrained` and its kin find the models.

    A saved model also carries the code that names them, so that `trust_remote_code=True` loads it in a process
    that never imported smht.
    """
    AutoConfig.register(SmhtConfig.model_type, SmhtConfig, exist_ok=True)
    AutoModel.register(SmhtConfig, SmhtModel, exist_ok=True)
    AutoModelForCausalLM.register(SmhtConfig, SmhtForCausalLM, exist_ok=True)
    SmhtConfig.register_for_auto_class()
    SmhtModel.register_for_auto_class("AutoModel")
    SmhtForCausalLM.register_for_auto_class("AutoModelForCausalLM")
