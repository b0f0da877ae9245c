"""A report as Markdown, with tables as GitHub shows them."""

import re

from smht.comparison.report.document import Block, Bullets, Cell, Code, Document, Findings, Gallery, Paragraph, Table

FIGURES = "figures"
"""The folder beside the report that its pictures are in."""
# Underscores within a word do nothing, and the last kind only where a line begins.
_SPECIAL = re.compile(r"[\\`*\[\]<>|~&]|(?<!\w)_|_(?!\w)|^[#+=-](?=[\s#=-]|$)")


def write_markdown(document: Document) -> str:
    """The whole report; its pictures are `figures/NAME.svg`."""
    parts = [f"# {_escape(document.title)}", _escape(document.lead)]
    for section in document.sections:
        parts.append(f"## {_escape(section.heading)}")
        parts += [_block(block) for block in section.blocks]
    return "\n\n".join(parts) + "\n"


def _block(block: Block) -> str:
    match block:
        case Paragraph(text):
            return _escape(text)
        case Findings(items):
            return "\n".join(f"- {_escape(item.text)}" for item in items)
        case Bullets(items):
            return "\n".join(f"- {_escape(item)}" for item in items)
        case Code(text):
            return _code(text)
        case Table():
            return _table(block)
        case Gallery(_, figures):
            return "\n\n".join(f"![{_escape(f.title)}]({FIGURES}/{f.name}.svg)" for f in figures)


def _table(table: Table) -> str:
    rules = [":--" if column == 0 or column in table.text_columns else "--:" for column in range(len(table.headers))]
    lines = [_row([_escape(header) for header in table.headers]), _row(rules)]
    lines += [_row([_cell(cell) for cell in row]) for row in table.cells()]
    note = f"\n\n{_escape(table.note)}" if table.note else ""
    return f"**{_escape(table.title)}**\n\n" + "\n".join(lines) + note


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell) -> str:
    text = _escape(cell.text)
    return f"**{text}**" if cell.is_marked and text else text


def _code(text: str) -> str:
    """A fenced block, fenced by more ticks than the text has."""
    ticks = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, ticks + 1)
    return f"{fence}\n{text}\n{fence}"


def _escape(text: str) -> str:
    """One line that Markdown shows as it is."""
    return _SPECIAL.sub(r"\\\g<0>", " ".join(text.split()))
