"""The dense Transformer that a split one derives from."""

import copy

from smht.models.configuration import SmhtConfig


def dense_twin(config: SmhtConfig) -> SmhtConfig:
    """The same architecture with full matrices: `split=()`, and `mixing="none"` since no head owns a channel.

    All else stays as it is, `norm_scope` and the attention implementation included, so that a comparison of the
    two tells what splitting does and nothing else.
    """
    twin = copy.deepcopy(config)
    twin.split = ()
    twin.mixing = "none"
    # A twin is not the checkpoint that its configuration came from.
    twin.name_or_path = ""
    return twin
