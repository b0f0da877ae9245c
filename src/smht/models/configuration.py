"""`SmhtConfig`: the one description of an architecture."""

import copy
import math
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, Self

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from smht.errors import UsageError, did_you_mean
from smht.layers.block import NORM_PLACEMENTS, SPLITTABLE
from smht.layers.norm import NORM_SCOPES
from smht.layers.position import POSITION_ENCODINGS
from smht.models.tensor_parallel import tensor_parallel_plan
from smht.ops.activation import ACTIVATIONS

_TRANSFORMERS_FIELDS = {field.name for field in fields(PreTrainedConfig)}
# What transformers itself adds to the arguments of any configuration.
_TRANSFORMERS_EXTRAS = {
    "attn_implementation",
    "auto_map",
    "experts_implementation",
    "is_causal",
    "model_type",
    "name_or_path",
    "num_labels",
    "output_attentions",
    "per_layer_config",
    "quantization_config",
    "torch_dtype",
}

STACKS = ("decoder", "encoder", "encoder_decoder")
"""Which Transformer."""

ATTENTION_PATTERNS = ("full", "block_sparse")
"""Which pairs of tokens attend."""

_CHOICES = {
    "stack": STACKS,
    "mixing": ("none", "shuffle"),
    "norm_scope": NORM_SCOPES,
    "norm_placement": NORM_PLACEMENTS,
    "position_embedding": tuple(POSITION_ENCODINGS),
    "attention_pattern": ATTENTION_PATTERNS,
    "hidden_act": tuple(ACTIVATIONS),
}


@strict
class SmhtConfig(PreTrainedConfig):
    """Architecture of a split multi-head Transformer, or of its dense twin.

    The defaults are seed 000's architecture: a pre-norm decoder with learned positions, exact GELU, LayerNorm
    over the whole vector, no biases, untied embeddings, and every projection block-diagonal per head.

    Args:
        vocab_size: `V`, number of tokens.
        hidden_size: `D`, a multiple of `num_attention_heads`.
        num_hidden_layers: `N`, number of blocks; of the encoder's, where there are two stacks.
        num_attention_heads: `H`.
        intermediate_size: `F`, 4·D if not given; a multiple of `H` where the feed-forward is split.
        max_position_embeddings: the context: how many positions there are.
        stack: `decoder`, which sees only what came before; `encoder`, which looks both ways; `encoder_decoder`, where
            a decoder attends to an encoder's output.
        num_decoder_layers: the decoder's blocks in an `encoder_decoder`; as many as the encoder's if not given.
        split: which projections are block-diagonal, any of `qkv`, `output`, `feed_forward`; `()` is the dense twin.
        mixing: `none`, or `shuffle`: block `l` assigns channels to heads by the `l`-th power of the transpose of
            `[H, K]`, over a fixed residual order.
        norm_scope: LayerNorm over the whole vector (`model`) or over each head's chunk alone (`head`).
        norm_placement: a norm before each sub-layer and one at the end (`pre`), or one after each residual sum and
            none at the end (`post`).
        position_embedding: `learned`, `sinusoidal`, `relative`, `rotary` or `none` (`smht.layers.position`).
        attention_pattern: `full`, or `block_sparse`: a token's own block and the last token of each other.
        sparse_block_size: length of those blocks; √`max_position_embeddings`, rounded, if not given.
        projection_bias: whether the projections add a bias.
        tie_word_embeddings: whether the language-model head is the transposed token embedding.
        hidden_act: activation of the feed-forward, a name in `smht.ops.activation.ACTIVATIONS`.
        layer_norm_eps: added to the variance in LayerNorm.
        hidden_dropout: probability that a channel of a sub-layer's output, or of the embedding, is dropped in training.
        attention_dropout: probability that an attention weight is dropped in training.
        initializer_range: standard deviation of fresh weights; by each layer's fan-in if not given.
        use_cache: whether the model returns keys and values for generation.
        bos_token_id: begins a text; like the other ids, the tokenizer's.
        eos_token_id: ends a text.
        pad_token_id: fills up rows of a batch.
        decoder_start_token_id: what an `encoder_decoder` begins its output with; `bos_token_id` if not given.

    Raises:
        UsageError: a value or a combination that makes no model, or an unknown name (the nearest is offered).
        StrictDataclassFieldValidationError: a value of the wrong type.
    """

    model_type = "smht"
    keys_to_ignore_at_inference = ["past_key_values", "cache"]  # noqa: RUF012 - transformers' own form
    base_model_pp_plan = {  # noqa: RUF012
        "embed_tokens": (["input_ids"], ["inputs_embeds"]),
        "layers": (["hidden_states", "mask"], ["hidden_states"]),
        "norm": (["hidden_states"], ["hidden_states"]),
    }

    vocab_size: int = 259
    hidden_size: int = 256
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    intermediate_size: int | None = None
    max_position_embeddings: int = 256
    stack: str = "decoder"
    num_decoder_layers: int | None = None
    split: tuple[str, ...] | list[str] = SPLITTABLE
    mixing: str = "none"
    norm_scope: str = "model"
    norm_placement: str = "pre"
    position_embedding: str = "learned"
    attention_pattern: str = "full"
    sparse_block_size: int | None = None
    projection_bias: bool = False
    tie_word_embeddings: bool = False
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-5
    hidden_dropout: float | int = 0.0
    attention_dropout: float | int = 0.0
    initializer_range: float | None = None
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    decoder_start_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        self._refuse_unknown(kwargs)
        if self.intermediate_size is None and isinstance(self.hidden_size, int):
            self.intermediate_size = 4 * self.hidden_size
        # One spelling of each choice: JSON gives lists, and the order of the names means nothing.
        unknown = [name for name in self.split if name not in SPLITTABLE]
        self.split = tuple(name for name in SPLITTABLE if name in self.split) + tuple(unknown)
        self._fill_in_what_follows()
        super().__post_init__(**kwargs)
        # The decorator calls this too, but wraps what it raises in an error of its own, of two lines.
        self.validate_architecture()

    def _fill_in_what_follows(self) -> None:
        self.is_encoder_decoder = self.stack == "encoder_decoder"
        if self.is_encoder_decoder and self.num_decoder_layers is None:
            self.num_decoder_layers = self.num_hidden_layers
        if self.is_encoder_decoder and self.decoder_start_token_id is None:
            self.decoder_start_token_id = self.bos_token_id
        if self.attention_pattern == "block_sparse" and self.sparse_block_size is None:
            self.sparse_block_size = max(1, round(math.sqrt(max(0, self.max_position_embeddings))))

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> Self:
        """The configuration itself; for the decoder of two stacks, a copy that counts the decoder's blocks."""
        if not (self.is_encoder_decoder and decoder and not encoder):
            return self
        text_config = copy.deepcopy(self)
        assert self.num_decoder_layers is not None
        text_config.num_hidden_layers = self.num_decoder_layers
        return text_config

    @property
    def base_model_tp_plan(self) -> dict[str, str] | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """How transformers' tensor parallelism cuts each projection; None where it cannot."""
        return tensor_parallel_plan(self)

    @base_model_tp_plan.setter
    def base_model_tp_plan(self, plan: Any) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """transformers 5.17 adds the rule of a tied embedding, which the plan has."""

    @property
    def head_dim(self) -> int:
        """`K`, the width of a head's chunk."""
        return self.hidden_size // self.num_attention_heads

    def validate_architecture(self) -> None:
        """Refuse what makes no model, with the numbers in the message."""
        for problem in self._problems():
            raise UsageError(problem)
        super().validate_architecture()

    def _problems(self) -> list[str]:
        heads = self.num_attention_heads
        sizes = (
            "vocab_size",
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
            "max_position_embeddings",
        )
        optional = [name for name in ("num_decoder_layers", "sparse_block_size") if getattr(self, name) is not None]
        problems = [
            f"{name} = {getattr(self, name)} must be at least 1"
            for name in (*sizes, *optional)
            if getattr(self, name) < 1
        ]
        if problems:
            return problems
        problems += [
            f"split names {name!r}, which is no projection: {did_you_mean(name, SPLITTABLE)}"
            for name in self.split
            if name not in SPLITTABLE
        ]
        problems += [
            f"{name} = {getattr(self, name)!r}: {did_you_mean(getattr(self, name), choices)}"
            for name, choices in _CHOICES.items()
            if getattr(self, name) not in choices
        ]
        if self.hidden_size % heads:
            problems.append(_indivisible("hidden_size", self.hidden_size, heads))
        if "feed_forward" in self.split and self.intermediate_size % heads:  # pyright: ignore[reportOptionalOperand]
            problems.append(_indivisible("intermediate_size", self.intermediate_size, heads))
        problems += self._useless_choices()
        for name in ("hidden_dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                problems.append(f"{name} = {getattr(self, name)} must be at least 0 and below 1")
        for name in ("layer_norm_eps", "initializer_range"):
            if getattr(self, name) is not None and not 0 < getattr(self, name) < math.inf:
                problems.append(f"{name} = {getattr(self, name)} must be above 0 and finite")
        return problems

    def _useless_choices(self) -> list[str]:
        """Options that would change nothing, or leave a constant."""
        problems = []
        if self.mixing == "shuffle":
            reason = None
            if not self.split:
                reason = "no projection is split"
            elif self.num_attention_heads == 1:
                reason = "there is one head"
            elif self.head_dim == 1:
                reason = "each head is one channel wide"
            if reason:
                problems.append(f"mixing = 'shuffle' would do nothing where {reason}; use mixing = 'none'")
        if self.norm_scope == "head" and self.head_dim == 1:
            problems.append(
                "norm_scope = 'head' would make every output constant where each head is one channel wide; "
                "use norm_scope = 'model' or fewer heads"
            )
        if self.position_embedding == "rotary" and self.head_dim % 2:
            problems.append(
                f"position_embedding = 'rotary' turns channels in pairs, and a head is {self.head_dim} channels wide; "
                "choose sizes that give an even head width"
            )
        if self.num_decoder_layers is not None and self.stack != "encoder_decoder":
            problems.append(
                f"num_decoder_layers = {self.num_decoder_layers} is for stack = 'encoder_decoder', "
                f"and this is stack = {self.stack!r}: leave it out"
            )
        if self.sparse_block_size is not None and self.attention_pattern != "block_sparse":
            problems.append(
                f"sparse_block_size = {self.sparse_block_size} is for attention_pattern = 'block_sparse', "
                f"and this is attention_pattern = {self.attention_pattern!r}: leave it out"
            )
        if (self.sparse_block_size or 0) > self.max_position_embeddings:
            problems.append(
                f"sparse_block_size = {self.sparse_block_size} is longer than the context, "
                f"max_position_embeddings = {self.max_position_embeddings}; attention_pattern = 'full' is one block"
            )
        return problems

    def _refuse_unknown(self, extras: dict[str, Any]) -> None:
        """Transformers accepts any name; a misspelt field would silently train another model."""
        own = {field.name for field in fields(self)}
        from_a_file = self.transformers_version is not None
        for name in extras:
            if name in _TRANSFORMERS_EXTRAS or name.startswith("_"):
                continue
            # A file may hold fields of another version of transformers, such as sep_token_id beside pad_token_id;
            # only what is nearer than that to one of ours is a slip of the pen.
            if not from_a_file or get_close_matches(name, own - _TRANSFORMERS_FIELDS, cutoff=0.87):
                raise UsageError(f"SmhtConfig has no field {name!r}: {did_you_mean(name, own)}")


def _indivisible(name: str, size: int | None, heads: int) -> str:
    below = (size or 0) // heads * heads
    nearest = f"nearest are {below} and {below + heads}" if below else f"nearest is {heads}"
    return f"{name} = {size} is not a multiple of num_attention_heads = {heads}; the {nearest}"
