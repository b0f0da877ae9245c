from pathlib import Path

from helpers.corpora import write
from smht.tasks.corpus import Corpus, Document
from smht.tasks.text_files import read_texts


def test_hash_is_of_names_order_and_contents_not_of_the_place(tmp_path: Path) -> None:
    files = {"a.txt": b"one", "x/b.txt": b"two"}
    here, there = (read_texts([str(write(tmp_path / name, files))]) for name in ("here", "there"))
    assert here.sha256 == there.sha256
    documents = here.documents
    variants = [
        documents,
        documents[::-1],
        documents[:1],
        (Document("a.txt", b"onet"), Document("x/b.txt", b"wo")),
        (Document("c.txt", b"one"), documents[1]),
        (Document("a.txto", b"ne"), documents[1]),
    ]
    assert len({Corpus("", (), variant).sha256 for variant in variants}) == len(variants)
