"""What transformers' tensor parallelism (`from_pretrained(..., tp_plan="auto")` under torchrun) does with the models.

Dense projections are cut as in Megatron (arXiv:1909.08053), split ones by head; embedding and language-model head by
token. Between ranks whole hidden states cross, twice a block, also where all is split; `smht.distributed.head_parallel`
sends far less.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

from smht.errors import UsageError

HAS_STYLES = True
"""Whether transformers' styles have the interface that ours need, in the version that is installed."""
try:
    import smht.models.tensor_parallel_styles  # noqa: F401 - registers them
except ImportError:
    HAS_STYLES = False

if TYPE_CHECKING:
    from smht.models.configuration import SmhtConfig

HEAD_PLAN = {"lm_head": "colwise_gather_output"} if HAS_STYLES else None
"""Of a language model's own modules."""


def tensor_parallel_plan(config: "SmhtConfig") -> dict[str, str] | None:
    """The style of each projection of a stack's blocks; None where the models or transformers cannot do it."""
    if not HAS_STYLES or _reason_against(config) is not None:
        return None
    first, last = _styles("qkv", config.split)[0], _styles("output", config.split)[1]
    up, down = _styles("feed_forward", config.split)
    return {
        "embed_tokens": "embedding_rowwise",
        **{f"layers.*.self_attn.{name}_proj": first for name in "qkv"},
        "layers.*.self_attn.o_proj": last,
        "layers.*.mlp.up_proj": up,
        "layers.*.mlp.down_proj": down,
    }


def refuse_tensor_parallel(config: "SmhtConfig", ranks: int) -> None:
    """Refuse a model that `ranks` ranks cannot share in transformers' way.

    Raises:
        UsageError: another stack than a decoder, relative positions, or heads that the ranks do not divide.
    """
    reason = _reason_against(config)
    if reason is not None:
        raise UsageError(f"tensor parallelism is for decoders without relative positions: {reason}")
    heads = config.num_attention_heads
    if heads % ranks:
        raise UsageError(f"tensor parallelism gives each of {ranks} ranks as many heads, and there are {heads}")


def _styles(part: str, split: Collection[str]) -> tuple[str, str]:
    return ("smht_split_colwise", "smht_split_rowwise") if part in split else ("colwise", "rowwise")


def _reason_against(config: "SmhtConfig") -> str | None:
    if config.stack != "decoder":
        # Two stacks share an embedding that the plan of neither can cut.
        return f"this is stack = {config.stack!r}"
    if config.position_embedding == "relative":
        # A number a head is added to the scores, for all heads on every rank.
        return "this is position_embedding = 'relative'"
    return None
