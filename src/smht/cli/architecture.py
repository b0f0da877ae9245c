"""A flag for every field of an architecture, shared by the commands that build one."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Literal

import typer

_SPLIT_HELP = "Block-diagonal projections: any of qkv,output,feed_forward, or none for the dense twin."

_Flag = tuple[Any, str]
FLAGS: dict[str, _Flag] = {
    "stack": (
        Literal["decoder", "encoder", "encoder_decoder"],
        "Which Transformer; the task's own by default.",
    ),
    "num_decoder_layers": (int, "Blocks of an encoder_decoder's decoder; as many as the encoder's by default."),
    "hidden_size": (int, "Width D; a multiple of the number of heads."),
    "num_hidden_layers": (int, "Number of blocks N."),
    "num_attention_heads": (int, "Number of heads H."),
    "intermediate_size": (int, "Feed-forward width F; 4·D by default."),
    "split": (str, _SPLIT_HELP),
    "mixing": (Literal["none", "shuffle"], "shuffle deals channels to heads anew in each block."),
    "norm_scope": (Literal["model", "head"], "head gives each head's chunk a LayerNorm of its own."),
    "norm_placement": (Literal["pre", "post"], "pre: norms before the sub-layers; post: after the sums, as in 2017."),
    "position_embedding": (
        Literal["learned", "sinusoidal", "relative", "rotary", "none"],
        "How the model knows the order of tokens.",
    ),
    "attention_pattern": (
        Literal["full", "block_sparse"],
        "block_sparse: a token's own block and the last token of each other.",
    ),
    "sparse_block_size": (int, "Length of those blocks; the context's square root by default."),
    "projection_bias": (bool, "Add biases to the projections."),
    "tie_word_embeddings": (bool, "Use the token embedding as language-model head."),
    "hidden_act": (
        Literal["gelu", "gelu_tanh", "relu", "relu_squared", "silu"],
        "Activation of the feed-forward.",
    ),
    "layer_norm_eps": (float, "Added to the variance in LayerNorm."),
    "hidden_dropout": (float, "Dropout of sub-layer outputs and embeddings."),
    "attention_dropout": (float, "Dropout of attention weights."),
    "initializer_range": (float, "Standard deviation of fresh weights; by fan-in by default."),
}
"""Field of `SmhtConfig`: the type of its flag and its help. Context and vocabulary have flags of their own."""


def with_architecture(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the flags; it receives those that were set as the dictionary `architecture`."""

    @wraps(command)
    def wrapper(**arguments: Any) -> None:
        given = {name: arguments.pop(name) for name in FLAGS}
        architecture = {name: value for name, value in given.items() if value is not None}
        if "split" in architecture:
            architecture["split"] = parse_split(architecture["split"])
            if not architecture["split"]:
                # In a dense model there is nothing to mix, whatever the preset does.
                architecture.setdefault("mixing", "none")
        command(**arguments, architecture=architecture)

    own = [p for p in inspect.signature(command).parameters.values() if p.name != "architecture"]
    flags = [_parameter(name, kind, text) for name, (kind, text) in FLAGS.items()]
    wrapper.__signature__ = inspect.Signature([*own, *flags])  # pyright: ignore[reportAttributeAccessIssue]
    return wrapper


def parse_split(text: str) -> tuple[str, ...]:
    """`qkv,output` as a tuple; `none` and nothing as the empty one. Names are checked by `SmhtConfig`."""
    names = tuple(name.strip().replace("-", "_") for name in text.split(",") if name.strip())
    return () if names == ("none",) else names


def _parameter(name: str, kind: Any, text: str) -> inspect.Parameter:
    flag = "--" + name.replace("_", "-")
    declaration = f"{flag}/--no-{flag[2:]}" if kind is bool else flag
    option = typer.Option(declaration, help=text, rich_help_panel="Architecture", show_default=False)
    annotation = Annotated[kind | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
