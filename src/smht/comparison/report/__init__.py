"""What a comparison came to, from its folder: numbers, `report.md` and `report.html`.

`outcomes.py` sorts the trials, `summary.py` reckons, `sections.py` says what stands where, and `markdown.py` and
`page.py` write it down.
"""

from smht.comparison.report.summary import Summary, summarise
from smht.comparison.report.tables import final_table
from smht.comparison.report.writing import check_extras, write_report

__all__ = ["Summary", "check_extras", "final_table", "summarise", "write_report"]
