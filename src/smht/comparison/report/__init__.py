"""What a comparison came to, from its folder: numbers, `report.md` and `report.html`.

`outcomes.py` sorts the trials, `summary.py` reckons, `sections.py` says what stands where, and `markdown.py` and
`page.py` write it down. Of a ladder of sizes, `ladder.py` reckons and `ladder_sections.py` says what stands where.
"""

from smht.comparison.report.ladder_sections import tell_crossings
from smht.comparison.report.summary import Summary, summarise
from smht.comparison.report.tables import final_table
from smht.comparison.report.writing import check_extras, write_ladder_report, write_report

__all__ = [
    "Summary",
    "check_extras",
    "final_table",
    "summarise",
    "tell_crossings",
    "write_ladder_report",
    "write_report",
]
