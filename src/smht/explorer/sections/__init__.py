"""The parts of the page, one a file. A new one is a line here."""

from smht.explorer.section import Section
from smht.explorer.sections.attention import Attention
from smht.explorer.sections.contributions import Contributions
from smht.explorer.sections.steps import Steps
from smht.explorer.sections.tokens import Tokens

SECTIONS: tuple[Section, ...] = (Tokens(), Steps(), Attention(), Contributions())
"""In the order of the page."""
