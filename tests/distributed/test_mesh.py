"""How ranks are dealt to batches and models."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smht.distributed.mesh import Mesh
from smht.errors import UsageError


@given(data=st.integers(1, 6), head=st.integers(1, 6))
def test_what_multiplies_to_the_ranks(data: int, head: int) -> None:
    assert Mesh.parse(f"data={data}, head={head}", data * head) == Mesh(data, head)
    assert Mesh.parse(f"head={head},data={data}", data * head) == Mesh(data, head)
    assert Mesh.parse(None, data * head) == Mesh(data=data * head)
    with pytest.raises(UsageError, match=f"is for {data * head} processes, and there are {data * head + 1}: start"):
        Mesh.parse(f"data={data},head={head}", data * head + 1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("heads=2", "mesh names 'heads': did you mean head"),
        ("", "mesh names ''"),
        ("data=two", "give each of data, head once, as in data=2,head=2"),
        ("data=0", "give each of"),
        ("data=-1", "give each of"),
        ("data", "give each of"),
        ("data=2,data=2", "give each of"),
        ("data=2,head=2", "is for 4 processes, and there is 1: start 4, as with --processes 4"),
    ],
)
def test_what_is_no_mesh(text: str, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        Mesh.parse(text, 1)
    assert says in str(refused.value) and "\n" not in str(refused.value)
