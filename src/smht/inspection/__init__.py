"""What a model consists of, costs and does, seen from outside: models are wrapped, never edited."""

from smht.inspection.accounting import Accounting, Costs, Part, account
from smht.inspection.coupling import Coupling, coupling
from smht.inspection.head_logits import HeadLogits, head_logits
from smht.inspection.trace import Step, Trace, trace
from smht.inspection.twin_comparison import Comparison, compare

__all__ = [
    "Accounting",
    "Comparison",
    "Costs",
    "Coupling",
    "HeadLogits",
    "Part",
    "Step",
    "Trace",
    "account",
    "compare",
    "coupling",
    "head_logits",
    "trace",
]
