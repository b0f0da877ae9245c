"""`smht plan`."""

import pytest

from helpers.command_line import refuse, succeed

ARGUMENTS = ("plan", "--preset", "andrea-12m", "--ranks", "2", "--flops", "50G")


def test_every_way_is_in_the_table() -> None:
    told = succeed(*ARGUMENTS).out
    assert all(name in told for name in ("data", "sharded", "megatron", "the dense twin", "computed, not run"))
    # A reason is a sentence on a line of its own, not a word a line in a cell.
    assert (
        "\nnot by head: head parallelism needs every projection split, and qkv, output, feed_forward are dense" in told
    )


def test_json_holds_the_numbers() -> None:
    found = succeed(*ARGUMENTS, "--split", "qkv,output,feed_forward", "--bandwidth", "100Mbit", "--json").json
    ways = {way["name"]: way for way in found["ways"]}
    assert found["bandwidth_bytes"] == 12_500_000
    # A rank may have a token more than the other.
    assert 0 <= 2 * ways["head"]["parameters"] - ways["data"]["parameters"] <= found["config"]["hidden_size"]
    for way in ways.values():
        waiting = way["bytes"] / 12_500_000 + way["rounds"] * 1e-4
        assert way["step_seconds"] == pytest.approx(way["compute_seconds"] + waiting)
    assert ways["head"]["bytes"] < ways["megatron"]["bytes"] / 10


def test_what_cannot_be_shared_says_why() -> None:
    arguments = (*ARGUMENTS[:-3], "3", "--flops", "50G", "--batch-size", "4", "--json")
    found = succeed(*arguments).json["ways"]
    assert not any(way["possible"] for way in found if way["name"] in ("data", "sharded", "head"))
    assert all(way["note"] for way in found if not way["possible"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--ranks", "1"), "ranks = 1: there is nothing to share below 2"),
        (("--ranks", "2", "--batch-size", "0"), "batch_size = 0 must be at least 1"),
        (("--ranks", "2", "--bandwidth", "fast"), "bandwidth = 'fast': write it like 100Mbit"),
        (("--ranks", "2", "--bandwidth", "0Mbit"), "bandwidth = '0Mbit'"),
        (("--ranks", "2", "--latency", "3"), "latency = '3': write it like 0.2ms"),
        (("--ranks", "2", "--flops", "-5G"), "flops = '-5G': write it like 50G"),
        (("--ranks", "2", "--preset", "andrea"), "did you mean"),
        (("--ranks", "2", "--stack", "encoder"), "plans are for language models"),
        (("--ranks", "2", "--flops", "50G", "--batch-size", "1" + "0" * 400), "is more than any step takes"),
        (("--ranks", "2", "--latency", "9" * 400 + "s"), "write it like 0.2ms"),
        ((), "--ranks"),
    ],
)
def test_bad_input(arguments: tuple[str, ...], says: str, tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(str(tmp_path))
    refuse("plan", *arguments, says=says)
