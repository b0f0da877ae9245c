"""What tests on corpora share."""

from pathlib import Path

from smht.tasks.corpus import Corpus, Document


def write(folder: Path, files: dict[str, bytes]) -> Path:
    """Files by their names under a folder, which is returned."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def contents(corpus: Corpus) -> dict[str, bytes]:
    """Bytes by name."""
    return {document.name: document.data for document in corpus.documents}


def corpus_of(*texts: bytes) -> Corpus:
    """Documents with names in order."""
    return Corpus("test", (), tuple(Document(f"{i:03d}.txt", text) for i, text in enumerate(texts)))
