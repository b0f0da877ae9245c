import pytest

from helpers.errors import refused
from smht.comparison.variants import LADDER, POSITIONS, Variant, parse_variant, parse_variants
from smht.layers.position import POSITION_ENCODINGS

ALL = ("qkv", "output", "feed_forward")
PLAIN = {"mixing": "none", "norm_scope": "model"}


def names(*texts: str) -> list[str]:
    return [variant.name for variant in parse_variants(texts)]


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("split", {"split": ALL}),
        ("dense", {"split": ()}),
        ("split+shuffle", {"split": ALL, "mixing": "shuffle"}),
        ("split+head-norm", {"split": ALL, "norm_scope": "head"}),
        ("split+dense-output", {"split": ("qkv", "feed_forward")}),
        ("split+dense-qkv", {"split": ("output", "feed_forward")}),
        ("split+dense-feed-forward", {"split": ("qkv", "output")}),
        ("split+dense-output+dense-qkv", {"split": ("feed_forward",)}),
        ("dense+no-positions", {"split": (), "position_embedding": "none"}),
        ("dense+learned+H=8", {"split": (), "position_embedding": "learned", "num_attention_heads": 8}),
    ],
)
def test_what_words_change(text: str, changes: dict[str, object]) -> None:
    assert parse_variant(text) == Variant(text, {**PLAIN, **changes})


def test_the_order_of_words_means_nothing() -> None:
    assert parse_variant("split+H=2+rotary+shuffle") == parse_variant(" split + shuffle+rotary + H=2")
    assert parse_variant("split+H=2+rotary+shuffle").name == "split+shuffle+rotary+H=2"


def test_every_position_encoding_has_a_word() -> None:
    assert sorted(POSITIONS.values()) == sorted(POSITION_ENCODINGS)
    for word, kind in POSITIONS.items():
        assert parse_variant(f"split+{word}").changes["position_embedding"] == kind


def test_names_of_several() -> None:
    assert names("ladder") == list(LADDER)
    assert names("positions") == [f"split+shuffle+{word}" for word in POSITIONS]
    assert names("dense+positions,split", "split+shuffle") == [
        *(f"dense+{word}" for word in POSITIONS),
        "split",
        "split+shuffle",
    ]


def test_each_rung_of_the_ladder_has_one_word_of_its_own() -> None:
    couplings = [
        (v.changes["norm_scope"], v.changes["mixing"], len(v.changes["split"])) for v in parse_variants(LADDER)
    ]
    assert couplings == [
        ("head", "none", 3),
        ("model", "none", 3),
        ("model", "shuffle", 3),
        ("model", "shuffle", 2),
        ("model", "shuffle", 1),
        ("model", "none", 0),
    ]
    assert names(*LADDER) == list(LADDER)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("splt", ("begins with 'splt'", "did you mean split?")),
        ("laddr", ("did you mean ladder?",)),
        ("", ("begins with ''", "words are split, dense, ladder, positions")),
        ("shuffle", ("begins with 'shuffle', not with split or dense",)),
        ("split+shufle", ("'split+shufle'", "no word 'shufle'", "did you mean shuffle?")),
        ("split+rotery", ("did you mean rotary?",)),
        ("split+xyz", ("words are shuffle, head-norm", "no-positions, H=8")),
        ("split+", ("no word ''",)),
        ("split+dense", ("dense stands first",)),
        ("split+shuffle+shuffle", ("says shuffle twice",)),
        ("split+rotary+learned", ("says rotary and learned: one of them",)),
        ("split+H=2+H=4", ("says H=2 and H=4: one of them",)),
        ("split+H=0", ("no word 'H=0'", "H=8")),
        ("split+H=-1", ("no word 'H=-1'",)),
        ("dense+shuffle", ("shuffle is for split models",)),
        ("dense+dense-output", ("dense-output is for split models",)),
    ],
)
def test_names_that_are_none(text: str, says: tuple[str, ...]) -> None:
    with refused(*says):
        parse_variant(text)


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["split"], ("needs two variants or more, not 1", "split,dense", "ladder or positions")),
        ([], ("needs two variants or more, not 0",)),
        ([" , "], ("not 0",)),
        (["split,dense,split"], ("variant split is there twice",)),
        (["split+rotary+shuffle,dense", "split+shuffle+rotary"], ("split+shuffle+rotary is there twice",)),
        (
            ["dense,split+dense-output+dense-qkv+dense-feed-forward"],
            ("split+dense-output+dense-qkv+dense-feed-forward is there twice as dense",),
        ),
        (["ladder,dense"], ("variant dense is there twice",)),
    ],
)
def test_lists_that_make_no_comparison(texts: list[str], says: tuple[str, ...]) -> None:
    with refused(*says):
        parse_variants(texts)
