"""How ranks are dealt to batches and models."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smht.distributed.mesh import Mesh
from smht.errors import UsageError


@given(data=st.integers(1, 6), way=st.sampled_from(["head", "shard"]), parts=st.integers(1, 6))
def test_what_multiplies_to_the_ranks(data: int, way: str, parts: int) -> None:
    mesh, ranks = Mesh(data, **{way: parts}), data * parts
    assert mesh.size == ranks and mesh.shares_model == (parts > 1)
    assert mesh.batch_shares == (ranks if way == "shard" else data)
    assert Mesh.parse(f"data={data}, {way}={parts}", ranks) == mesh
    assert Mesh.parse(f"{way}={parts},data={data}", ranks) == mesh
    assert Mesh.parse(None, ranks) == Mesh(data=ranks)
    with pytest.raises(UsageError, match=f"is for {ranks} processes, and there are {ranks + 1}: start"):
        Mesh.parse(f"data={data},{way}={parts}", ranks + 1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("heads=2", "mesh names 'heads': did you mean head"),
        ("", "mesh names ''"),
        ("data=two", "give each of data, shard, head once, as in data=2,head=2"),
        ("data=0", "give each of"),
        ("data=-1", "give each of"),
        ("data", "give each of"),
        ("data=2,data=2", "give each of"),
        ("shard=2,head=2", "shares a model in two ways: take shard or head"),
        ("data=2,head=2", "is for 4 processes, and there is 1: start 4, as with --processes 4"),
    ],
)
def test_what_is_no_mesh(text: str, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        Mesh.parse(text, 1)
    assert says in str(refused.value) and "\n" not in str(refused.value)
