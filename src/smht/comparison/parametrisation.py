"""The learning rate that a search begins from, and the weight decay, of all that the plain loop trains.

How the rate is spread over the weights is `smht.training.parametrisation`'s.
"""

from smht.models import SmhtConfig
from smht.tasks.language_modelling import LanguageModelling
from smht.training.parametrisation import STANDARD, default_learning_rate

WEIGHT_DECAY = 0.1
"""AdamW's, of weights with two or more axes."""


def base_learning_rate(config: SmhtConfig, parametrisation: str = STANDARD) -> float:
    """The peak that an architecture is expected to do best with; a search tries multiples of it."""
    return default_learning_rate(LanguageModelling(), config, parametrisation)
