"""What a model consists of, costs and does, seen from outside: models are wrapped, never edited."""

from smht.inspection.ablation import AblationResult, ablate
from smht.inspection.accounting import Accounting, Costs, Part, account
from smht.inspection.coupling import Coupling, coupling
from smht.inspection.edited_heads import edited_heads
from smht.inspection.head_edits import Drop, DropLineage, Freeze, Swap
from smht.inspection.head_logits import HeadLogits, head_logits
from smht.inspection.many_texts import TextsAblation, ablate_over
from smht.inspection.ranking import HeadEffect, HeadRanking, rank_heads, rank_heads_over
from smht.inspection.trace import Step, Trace, trace
from smht.inspection.twin_comparison import Comparison, compare

__all__ = [
    "AblationResult",
    "Accounting",
    "Comparison",
    "Costs",
    "Coupling",
    "Drop",
    "DropLineage",
    "Freeze",
    "HeadEffect",
    "HeadLogits",
    "HeadRanking",
    "Part",
    "Step",
    "Swap",
    "TextsAblation",
    "Trace",
    "ablate",
    "ablate_over",
    "account",
    "compare",
    "coupling",
    "edited_heads",
    "head_logits",
    "rank_heads",
    "rank_heads_over",
    "trace",
]
