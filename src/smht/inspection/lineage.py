"""Whether a head's chunk of the last hidden state comes from its chunk of the embeddings alone (seed 000, 6.2)."""

from smht.layers.block import SPLITTABLE
from smht.models import SmhtConfig

ONLY_LAST = "chunks are of the last hidden state only"


def lineage(config: SmhtConfig) -> tuple[bool, str]:
    """Whether chunk `h` of the last hidden state comes from that of the embeddings alone; and why, in a sentence."""
    if set(config.split) != set(SPLITTABLE):
        missing = ", ".join(name for name in SPLITTABLE if name not in config.split)
        return False, f"{ONLY_LAST}: the dense projections ({missing}) mix them before"
    if config.mixing != "none" and max(config.num_hidden_layers, config.num_decoder_layers or 0) > 1:
        return False, f"{ONLY_LAST}: {config.mixing} mixing deals channels anew in each block"
    own = "each chunk comes from its own chunk of the embeddings"
    if config.norm_scope == "head":
        return True, f"{own} alone"
    return True, f"{own}, but for the mean and variance in each LayerNorm"
