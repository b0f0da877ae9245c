"""Pieces of HTML that all figures are made of. Whatever comes from a text or a file is escaped here."""

from collections.abc import Collection, Iterable, Sequence
from html import escape


def words(text: str) -> str:
    """Text of a page."""
    return escape(text)


def token(name: str) -> str:
    """A token's text, which may run from right to left without turning what stands beside it."""
    return f"<bdi>{escape(name)}</bdi>"


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph of plain text."""
    return f"<p{_class(kind)}>{escape(text)}</p>"


def scrolling(label: str, content: str) -> str:
    """What may be wider than a telephone; a keyboard reaches and scrolls it."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}">{content}</div>'


def table(caption: str, head: Iterable[str], rows: Iterable[str], kind: str = "") -> str:
    """A table with a caption, in a region that scrolls.

    Args:
        caption: plain text.
        head: rows of the head, each as HTML cells.
        rows: of the body.
        kind: a class.
    """
    top = "".join(f"<tr>{row}</tr>" for row in head)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return scrolling(
        caption,
        f"<table{_class(kind)}><caption>{escape(caption)}</caption><thead>{top}</thead><tbody>{body}</tbody></table>",
    )


def heading_cells(names: Sequence[str], of_words: Collection[str] = ()) -> str:
    """Column headings of plain text.

    Args:
        names: of the columns.
        of_words: those of them that hold words, on the left like the first; numbers are on the right.
    """
    return "".join(f'<th scope="col"{_class("text" * (name in of_words))}>{escape(name)}</th>' for name in names)


def details(summary: str, content: str, is_open: bool = False) -> str:
    """What opens when asked for."""
    return f"<details{' open' if is_open else ''}><summary>{escape(summary)}</summary>{content}</details>"


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
