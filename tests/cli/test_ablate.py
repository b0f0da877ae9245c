"""`smht ablate` on a language model; those of translators and classifiers are with the other tests of theirs."""

from pathlib import Path

import pytest

from helpers.command_line import refuse, succeed


def test_a_line_an_edit_and_one_for_all(run: Path) -> None:
    lines = succeed("ablate", run, "the split", "--drop", "0.0", "--freeze", "0.1").out.splitlines()
    assert lines[0].split() == ["nats,", "mean", "of", "9", "before", "after", "change"]
    assert [line.rsplit(None, 3)[0] for line in lines[2:5]] == [
        "drop layer 0 head 0",
        "freeze layer 0 head 1 at its mean",
        "all together",
    ]
    before, after, change = (float(number) for number in lines[4].split()[-3:])
    assert after - before == pytest.approx(change, abs=2e-4)
    assert lines[5] == "norms' statistics live (of the edited run); of each head: attention, feed-forward"
    assert len(lines) == 6
    assert len(succeed("ablate", run, "the split", "--swap", "0.0:0.1").out.splitlines()) == 4


def test_numbers_as_json(run: Path) -> None:
    found = {
        statistics: succeed("ablate", run, "ab", "--drop", "1", "--statistics", statistics, "--json").json
        for statistics in ("live", "held")
    }
    live, held = found["live"], found["held"]
    assert (live["statistics"], held["statistics"]) == ("live", "held")
    assert live["edits"][0]["edit"] == "drop chunk 1 from embedding to last hidden state"
    assert live["loss_before"] == held["loss_before"]
    assert live["loss_after"] != held["loss_after"]
    assert [token["token"] for token in live["tokens"]] == ["a", "b"]
    mean = sum(token["loss_after"] for token in live["tokens"]) / 2
    assert live["loss_after"] == pytest.approx(mean) == pytest.approx(live["loss_before"] + live["change"])


def test_token_by_token(run: Path) -> None:
    out = succeed("ablate", run, "a b\n", "--drop", "0.0", "--parts", "feed-forward", "--tokens").out
    assert "drop layer 0 head 0 (feed-forward)" in out
    assert [line.split()[0] for line in out.splitlines()[-4:]] == ["a", "␣", "b", "⏎"]


@pytest.mark.parametrize("statistics", ["live", "held"])
def test_the_text_goes_on_before_and_after(run: Path, statistics: str) -> None:
    arguments = ("ablate", run, "the", "--swap-weights", "0.0:0.1", "--generate", "5", "--statistics", statistics)
    lines = succeed(*arguments).out.splitlines()
    assert "--- text before" in lines and "--- text after" in lines
    found = succeed(*arguments, "--json").json
    greedy = succeed("generate", run, "the", "--temperature", "0", "--max-new-tokens", "5").out
    assert found["text_before"] + "\n" == greedy
    assert found["text_after"].startswith("the")
    freeze = succeed("ablate", run, "the", "--freeze", "0.1", "--generate", "13", "--json").json
    assert len(freeze["text_after"]) >= 3


def test_heads_are_ranked(run: Path) -> None:
    found = succeed("ablate", run, "the split head", "--rank", "--json").json
    assert found["targets"] == 14
    changes = [effect["change"] for effect in found["effects"]]
    assert len(changes) == 2 and changes == sorted(changes, reverse=True)
    for effect in found["effects"]:
        alone = succeed("ablate", run, "the split head", "--drop", f"0.{effect['head']}", "--json").json
        assert alone["loss_after"] == pytest.approx(effect["loss"])
    lines = succeed("ablate", run, "the split head", "--rank", "--parts", "attention").out.splitlines()
    assert lines[0].startswith("whole model: loss ") and lines[0].endswith(" right; each head dropped alone")
    assert lines[1].split() == [*("layer", "head", "loss", "without", "it", "change", "right", "without", "it")]
    assert lines[-1].endswith("of each head: attention")


def test_over_files_the_loss_is_that_of_evaluate(run: Path) -> None:
    Path("one.txt").write_text("def split(head):\n    return head\n" * 4)
    Path("two.txt").write_text("é")
    files = ("one.txt", "two.txt", "--files", "--json")
    found = succeed("ablate", run, *files, "--drop", "0.0", "--freeze", "0.1").json
    evaluated = succeed("evaluate", run, "one.txt", "two.txt", "--context", "15", "--json").json
    assert found["before"]["targets"] == evaluated["tokens"] == 33 * 4 + 2
    assert found["before"]["loss"] == pytest.approx(evaluated["loss"], rel=1e-5)
    assert found["texts"] == 10
    assert [edit["edit"] for edit in found["edits"]] == ["drop layer 0 head 0", "freeze layer 0 head 1 at its mean"]
    assert found["edits"][0]["before"] == found["before"]
    ranking = succeed("ablate", run, *files, "--rank").json
    assert ranking["targets"] == found["before"]["targets"]
    dropped = next(effect for effect in ranking["effects"] if effect["head"] == 0)
    assert dropped["loss"] == found["edits"][0]["after"]["loss"]
    assert dropped["accuracy"] == found["edits"][0]["after"]["accuracy"]


def test_tables_over_files(run: Path) -> None:
    lines = succeed("ablate", run, "text.txt", "--files", "--most", "3", "--drop", "0.0,0.1").out.splitlines()
    assert lines[0].split()[:4] == ["nats,", "mean", "of", "45"]  # each of 3 windows of 16 predicts all but its first
    assert [line.rsplit(None, 5)[0] for line in lines[2:5]] == [
        *("drop layer 0 head 0", "drop layer 0 head 1", "all together")
    ]
    asked = ("ablate", run, "-", "--files", "--rank", "--statistics", "held")
    lines = succeed(*asked, stdin=b"the split head").out.splitlines()
    assert "mean of 14" in lines[0]
    assert lines[-1].startswith("norms' statistics held (of the unedited run)")


def test_what_is_refused_over_files(run: Path) -> None:
    refuse("ablate", run, "missing.txt", "--files", "--rank", says="no such file or folder")
    refuse("ablate", run, "text.txt", "--files", "--rank", "--most", "0", says="most = 0 must be at least 1")
    refuse("ablate", run, "text", "--rank", "--most", "3", says="--most is for the texts of --files")
    refuse(
        "ablate", run, "a", "text", "--rank", says="2 texts were given: quote a text that has spaces, or say --files"
    )
    for option in (("--tokens",), ("--generate", "2"), ("--target", "x"), ("--label", "x")):
        refuse("ablate", run, "text.txt", "--files", "--drop", "0.1", *option, says="are for one text")
    refuse("ablate", run, "text", "--drop", "0.1", "--label", "x", says="--label is for runs of a classifier")
    refuse("ablate", run, "text.txt", "--files", "--drop", "0.7", says="there is no head 7: they are 0 to 1")
    Path("empty.txt").touch()
    refuse("ablate", run, "empty.txt", "--files", "--rank", says="empty")


def test_what_is_refused(run: Path) -> None:
    refuse("ablate", run, "text", says="name heads to --drop, --freeze, --swap or --swap-weights, or --rank them all")
    refuse("ablate", run, "text", "--drop", "1.0", says="there is no layer 1: they are 0 to 0")
    refuse("ablate", run, "text", "--drop", "0.2", says="there is no head 2: they are 0 to 1")
    refuse("ablate", run, "text", "--drop", "2", says="there is no head 2: they are 0 to 1")
    refuse("ablate", run, "text", "--freeze", "0.7", says="there is no head 7")
    refuse("ablate", run, "text", "--freeze", "1", says="'1' names no head: write layer.head, such as 0.2")
    for name in ("", "0.", "a.b", "0.1.2", "-1.0", "0,1", "²", "0.1,"):
        refuse("ablate", run, "text", f"--swap-weights={name}:0.0", says="names no")
        refuse("ablate", run, "text", f"--freeze={name}", says="names no head")
    refuse("ablate", run, "text", "--drop", "0.x", says="'0.x' names no head")
    refuse("ablate", run, "text", "--swap", "0.1", says="'0.1' names no two heads: write them with a colon")
    refuse("ablate", run, "text", "--swap", "0.1:0.1", says="swapped with itself")
    refuse("ablate", run, "text", "--drop", "0.1", "--freeze", "0.1", says="layer 0 head 1 is edited twice")
    refuse("ablate", run, "text", "--drop", "encoder.0.1", says=("no stack 'encoder'", "named without it"))
    refuse("ablate", run, "text", "--swap", "encoder.0.1:decoder.0.1", says="heads of two stacks")
    refuse("ablate", run, "text", "--drop", "0.1", "--parts", "ffn", says="a head has no part 'ffn'")
    refuse("ablate", run, "text", "--rank", "--parts", "cross-attention", says="since there is no memory")
    refuse("ablate", run, "text", "--rank", "--drop", "0.1", says="--rank drops each head alone")
    refuse("ablate", run, "text", "--drop", "0.1", "--statistics", "hold", says="'hold' is not one of")
    refuse("ablate", run, "text", "--drop", "0.1", "--target", "x", says="--target is for runs of an encoder-decoder")
    refuse("ablate", run, "text", "--drop", "0.1", "--generate", "13", says="generate = 13 must be from 1 to 12")
    refuse("ablate", run, "text", "--drop", "0.1", "--generate", "0", says="generate = 0")
    refuse("ablate", run, "", "--drop", "0.1", says="the text is empty")
    refuse("ablate", run, "x" * 16, "--drop", "0.1", says="the model's 16 positions")
    refuse("ablate", "nowhere", "text", "--drop", "0.1", says="there is no run folder nowhere")


@pytest.mark.parametrize("name", ["1" * 5000, "0." + "1" * 5000])
def test_numbers_that_python_refuses_to_read_name_no_head(run: Path, name: str) -> None:
    refuse("ablate", run, "ab", "--drop", name, says="names no head")
