"""A report as one HTML file: no script, no request to anywhere, light and dark, for a desk and for a telephone."""

from html import escape
from pathlib import Path

from smht.comparison.report.document import (
    Block,
    Bullets,
    Cell,
    Code,
    Document,
    Findings,
    Gallery,
    Paragraph,
    Section,
    Table,
)

# Nothing is fetched, not even by mistake; an empty icon keeps browsers from asking for one.
_HEAD = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<header>
<h1>{title}</h1>
<p>{lead}</p>
</header>
"""


def write_page(document: Document) -> str:
    """The whole report."""
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    parts = [_HEAD.format(title=escape(document.title), lead=escape(document.lead), style=style)]
    links = "\n".join(f'<a href="#{_id(section)}">{escape(section.heading)}</a>' for section in document.sections)
    parts.append(f'<nav aria-label="Sections">\n{links}\n</nav>\n<main>\n')
    parts += [_section(section) for section in document.sections]
    parts.append("</main>\n</body>\n</html>\n")
    return "".join(parts)


def _section(section: Section) -> str:
    blocks = "\n".join(_block(block) for block in section.blocks)
    return f'<section id="{_id(section)}">\n<h2>{escape(section.heading)}</h2>\n{blocks}\n</section>\n'


def _id(section: Section) -> str:
    return "-".join(section.heading.lower().split())


def _block(block: Block) -> str:
    match block:
        case Paragraph(text):
            return f"<p>{escape(text)}</p>"
        case Findings(items):
            kinds = {True: "<li>", False: '<li class="untold">'}
            points = "\n".join(f"{kinds[item.is_marked]}{escape(item.text)}</li>" for item in items)
            return f'<ul class="findings">\n{points}\n</ul>'
        case Bullets(items):
            points = "\n".join(f"<li>{escape(item)}</li>" for item in items)
            return f'<ul class="notes">\n{points}\n</ul>'
        case Code(text):
            return f'<pre tabindex="0"><code>{escape(text)}</code></pre>'
        case Table():
            return _table(block)
        case Gallery():
            return _gallery(block)


def _table(table: Table) -> str:
    head = "".join(
        f'<th scope="col"{_kind(table, column)}>{escape(header)}</th>' for column, header in enumerate(table.headers)
    )
    rows = "\n".join(f"<tr>{_row(table, row)}</tr>" for row in table.cells())
    note = f'\n<p class="note">{escape(table.note)}</p>' if table.note else ""
    title = escape(table.title)
    # What scrolls can be reached by keyboard.
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{title}">\n<table>\n'
        f"<caption>{title}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>\n</div>{note}"
    )


def _row(table: Table, row: list[Cell]) -> str:
    first, *others = row
    # Names of variants break where their words do.
    name = _cell(first).replace("+", "+<wbr>")
    cells = [f'<th scope="row">{name}</th>']
    cells += [f"<td{_kind(table, column)}>{_cell(cell)}</td>" for column, cell in enumerate(others, 1)]
    return "".join(cells)


def _cell(cell: Cell) -> str:
    text = escape(cell.text)
    return f"<strong>{text}</strong>" if cell.is_marked and text else text


def _kind(table: Table, column: int) -> str:
    return ' class="text"' if column == 0 or column in table.text_columns else ""


def _gallery(gallery: Gallery) -> str:
    legend = "\n".join(f"<li>{entry.svg}<span>{escape(entry.name)}</span></li>" for entry in gallery.legend)
    figures = "\n".join(
        f"<figure>\n{figure.svg}\n<figcaption>{escape(figure.title)}</figcaption>\n</figure>"
        for figure in gallery.figures
    )
    key = f'<ul class="legend" aria-label="Legend">\n{legend}\n</ul>\n' if gallery.legend else ""
    return f'{key}<div class="gallery">\n{figures}\n</div>'
