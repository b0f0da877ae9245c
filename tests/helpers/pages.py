"""A page as a browser would take it apart: strict where browsers forgive."""

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

_VOID = {"meta", "link", "br", "wbr", "hr", "img", "input"}
# What a browser would fetch or follow.
_ADDRESSES = ("src", "href", "xlink:href", "action", "data", "poster", "srcset", "style", "background")


@dataclass
class Element:
    """A tag with its attributes and all text inside it."""

    tag: str
    attributes: dict[str, str]
    text: str = ""
    inside: "list[Element]" = field(default_factory=list)

    def all(self, tag: str) -> "list[Element]":
        """Every element of this tag below, in the page's order."""
        found = []
        for element in self.inside:
            found += [element] if element.tag == tag else []
            found += element.all(tag)
        return found


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]], closed: bool = False) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"an attribute twice in <{tag}>"
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].inside.append(element)
        if tag not in _VOID and not closed:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs, closed=True)

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element.text += data


def parse_page(text: str) -> Element:
    """The page's root; AssertionError where tags are not balanced, ids not unique, or references lead nowhere."""
    parser = _Parser()
    parser.feed(text)
    parser.close()
    assert parser.open == [parser.root], f"<{parser.open[-1].tag}> is never closed"
    elements = _everything(parser.root)
    ids = [element.attributes["id"] for element in elements if "id" in element.attributes]
    assert len(set(ids)) == len(ids), "an id twice"
    for element in elements:
        for reference in _references(element.attributes):
            assert reference in ids, reference
    return parser.root


def addresses(page: Element) -> set[str]:
    """All that a browser would fetch or follow outside the page."""
    found = set()
    for element in _everything(page):
        for name, value in element.attributes.items():
            if name in _ADDRESSES:
                found |= set(re.findall(r"url\((?!#)[^)]*\)", value)) if name == "style" else {value}
    for style in page.all("style"):
        found |= set(re.findall(r"url\([^)]*\)|@import[^;]*", style.text))
    return {address for address in found if not address.startswith("#")}


def _everything(element: Element) -> list[Element]:
    return [element, *(below for inner in element.inside for below in _everything(inner))]


def _references(attributes: dict[str, Any]) -> list[str]:
    found = attributes.get("aria-labelledby", "").split()
    found += [attributes["href"][1:]] if attributes.get("href", "").startswith("#") else []
    return found + [name for value in attributes.values() for name in re.findall(r"url\(#([^)]*)\)", value)]
