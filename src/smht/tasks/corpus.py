"""The user's raw text as documents of bytes.

Nothing here decodes: a document is bytes, and what its characters are is the tokenizer's matter. A corpus
remembers what it was asked for in `Corpus.sources`, so that a resumed run can read the same text again.
"""

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Document:
    """One text: its `name`, relative to what the user gave, and its bytes as they were stored."""

    name: str
    data: bytes = field(repr=False)


@dataclass(frozen=True)
class Corpus:
    """Documents in a fixed order, and what they were read from.

    Attributes:
        description: What the text is, for a person.
        sources: What `read_again` reads the text again from: absolute paths and globs, `-`,
            `python-standard-library`, or `hub:NAME?split=...`. The parts that `hold_out` returns keep the
            sources of the whole.
        documents: The texts, none of them empty.
    """

    description: str
    sources: tuple[str, ...]
    documents: tuple[Document, ...] = field(repr=False)

    @property
    def num_bytes(self) -> int:
        """Bytes of all documents together."""
        return sum(len(document.data) for document in self.documents)

    @cached_property
    def sha256(self) -> str:
        """Hexadecimal hash of every document's name and bytes in order; the same wherever the files lie."""
        digest = hashlib.sha256()
        for document in self.documents:
            name = document.name.encode("utf-8", "surrogatepass")
            digest.update(f"{len(name)} {len(document.data)}\n".encode())
            digest.update(name)
            digest.update(document.data)
        return digest.hexdigest()

    def to_manifest(self) -> dict[str, Any]:
        """What a run records about its text, ready for JSON: everything but the text itself."""
        return {
            "description": self.description,
            "sources": list(self.sources),
            "documents": len(self.documents),
            "bytes": self.num_bytes,
            "sha256": self.sha256,
        }


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """`1 file`, `2 files`, `2 copies`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
