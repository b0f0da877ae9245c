"""What tests on refusals share."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from smht.errors import SmhtError, UsageError


@contextmanager
def refused(*needles: str, kind: type[SmhtError] = UsageError) -> Iterator[None]:
    """An error of exactly this kind, in one line that starts in lower case (or with a path) and has every needle."""
    with pytest.raises(kind) as caught:
        yield
    assert type(caught.value) is kind
    line = str(caught.value)
    assert len(line.splitlines()) == 1, line
    assert not line[0].isupper(), line
    for needle in needles:
        assert needle in line
