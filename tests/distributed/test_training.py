"""`smht train` on several ranks: the same run as on one, and one line where it cannot be."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from helpers import together as programs
from helpers.command_line import FOUR_STEPS, TINY, Result, check_error_line
from helpers.processes import Worlds
from helpers.together import SIZES
from smht.models import SmhtForCausalLM
from smht.training.checkpoint import list_checkpoints

WAYS = {
    "one": (1, []),
    "two": (2, []),
    "heads": (2, ["--mesh", "head=2"]),
    "both": (4, ["--mesh", "data=2,head=2"]),
    "shards": (2, ["--mesh", "shard=2"]),
    "hybrid": (4, ["--mesh", "data=2,shard=2"]),
}
"""The same run by one rank, by two with half a batch each, by two with half the heads each, and by four; by two with
half of every parameter each, and by four with two such models."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text in it."""
    made = tmp_path_factory.mktemp("together")
    (made / "text.txt").write_text(programs.TEXT)
    return made


@pytest.fixture(scope="module")
def runs(world: Worlds, folder: Path) -> dict[str, Path]:
    """The same run in each way."""
    for name in WAYS:
        told, *others = train(world, folder, name, "text.txt", *SIZES, "--output", name, "--json")
        assert told.json["status"] == "finished"
        assert told.err.count("validation") == 2, told.err  # two evaluations
        assert ("ranks " in told.err) == (name != "one")
        assert all((other.out, other.err) == ("", "") for other in others)
    return {name: folder / name for name in WAYS}


def train(world: Worlds, folder: Path, way: str, *arguments: object, code: int = 0) -> list[Result]:
    """`smht train` on the ranks of a way, of which the first comes first."""
    ranks, flags = WAYS[way]
    words = ["train", *map(str, arguments), *flags]
    results = [programs.alone(folder, words)] if ranks == 1 else world.run(ranks, programs.on_rank, str(folder), words)
    assert [result.code for result in results] == [code] * ranks, results[0].err
    return results


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def values(logged: list[dict[str, Any]], name: str) -> list[float]:
    return [row[name] for row in logged if row[name] is not None]


def moments(run: Path) -> dict[str, torch.Tensor]:
    """Those of the newest checkpoint, put together from the files of whichever ranks wrote them."""
    files = [
        safe_open(path, "pt") for path in sorted((list_checkpoints(run / "checkpoints")[-1] / "moments").iterdir())
    ]
    parts: dict[str, list[tuple[list[int], torch.Tensor]]] = {}
    for file in files:
        places = json.loads(file.metadata()["DCP_SHARDING_INFO"])
        for name, place in places.items():
            parts.setdefault(name, []).append((place["saved_offsets"], file.get_tensor(name)))
    wholes = {}
    for name, found in parts.items():
        ends = [[start + size for start, size in zip(place, part.shape, strict=True)] for place, part in found]
        whole = torch.full([max(axis) for axis in zip(*ends, strict=True)], float("nan"))
        for place, part in found:
            whole[tuple(slice(start, start + n) for start, n in zip(place, part.shape, strict=True))] = part
        wholes[name] = whole
    return wholes


def compare_moments(expected: Path, found: Path) -> None:
    """The newest checkpoints have the same moments by name."""
    one, several = moments(expected), moments(found)
    assert one.keys() == several.keys()
    for name, whole in one.items():
        torch.testing.assert_close(several[name], whole, rtol=1e-3, atol=1e-4 * float(whole.abs().max()))


@pytest.mark.parametrize("way", [name for name in WAYS if name != "one"])
def test_several_ranks_train_the_run_of_one(runs: dict[str, Path], way: str) -> None:
    one, several = rows(runs["one"]), rows(runs[way])
    assert [row["step"] for row in one] == [row["step"] for row in several]
    for name in ("loss", "validation_loss", "learning_rate"):
        assert values(several, name) == pytest.approx(values(one, name), rel=1e-5)
    weights = [load_file(runs[name] / "model.safetensors") for name in ("one", way)]
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", list(WAYS))
def test_every_run_loads_in_one_process(runs: dict[str, Path], way: str) -> None:
    model = SmhtForCausalLM.from_pretrained(runs[way])
    assert model(torch.zeros(1, 2, dtype=torch.long)).logits.shape == (1, 2, model.config.vocab_size)
    assert json.loads((runs[way] / "run.json").read_text())["processes"] == WAYS[way][0]


def test_another_number_of_ranks_resumes(world: Worlds, runs: dict[str, Path], tmp_path: Path) -> None:
    extended = {}
    ways = {"one": "two", "two": "heads", "heads": "one", "shards": "one", "both": "shards", "hybrid": "heads"}
    for name, way in ways.items():
        shutil.copytree(runs[name], tmp_path / name)
        (tmp_path / "text.txt").write_text(programs.TEXT)
        told = train(world, tmp_path, way, "--resume", name, "--steps", 6, "--json")[0]
        extended[name] = told.json["validation_loss"]
    for name in ways:
        assert extended[name] == pytest.approx(extended["one"], rel=1e-4)
        compare_moments(tmp_path / "one", tmp_path / name)


@pytest.mark.parametrize("way", [name for name in WAYS if name not in ("one", "two")])
def test_checkpoints_have_the_moments_of_the_whole_model(runs: dict[str, Path], way: str) -> None:
    compare_moments(runs["one"], runs[way])


@pytest.mark.parametrize("way", ["heads", "shards"])
def test_each_rank_writes_the_moments_that_it_has(runs: dict[str, Path], way: str) -> None:
    checkpoint = list_checkpoints(runs[way] / "checkpoints")[-1]
    sizes = [path.stat().st_size for path in (checkpoint / "moments").iterdir()]
    assert len(sizes) == 2
    assert max(sizes) < 1.2 * min(sizes)
    rest = torch.load(checkpoint / "optimizer.pt", weights_only=True)["state"]
    assert {name for own in rest.values() for name in own} == {"step"}


@pytest.mark.parametrize("way", ["heads", "shards"])
def test_a_checkpoint_of_another_model_is_told_once(
    world: Worlds, runs: dict[str, Path], tmp_path: Path, way: str
) -> None:
    shutil.copytree(runs[way], tmp_path / way)
    (tmp_path / "text.txt").write_text(programs.TEXT)
    config = json.loads((tmp_path / way / "config.json").read_text())
    config["intermediate_size"] *= 2
    (tmp_path / way / "config.json").write_text(json.dumps(config))
    told, other = train(world, tmp_path, way, "--resume", way, "--steps", 6, code=1)
    assert "does not fit the run's config.json" in told.err
    assert (other.out, other.err) == ("", "")


@pytest.mark.parametrize("way", ["two", "shards"])
def test_so_is_a_checkpoint_of_another_version(world: Worlds, runs: dict[str, Path], tmp_path: Path, way: str) -> None:
    shutil.copytree(runs[way], tmp_path / way)
    (tmp_path / "text.txt").write_text(programs.TEXT)
    newest = list_checkpoints(tmp_path / way / "checkpoints")[-1]
    manifest = json.loads((newest / "manifest.json").read_text())
    manifest["sha256"] = {name: each for name, each in manifest["sha256"].items() if not name.startswith("moments/")}
    (newest / "manifest.json").write_text(json.dumps(manifest))
    shutil.rmtree(newest / "moments")
    told, other = train(world, tmp_path, way, "--resume", way, "--steps", 6, code=1)
    assert "moments is missing: another version of smht wrote this checkpoint" in told.err
    assert (other.out, other.err) == ("", "")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["text.txt", "--batch-size", "3"], "batch_size = 3 cannot be dealt out evenly to 2 processes; the nearest"),
        (["-"], "2 processes cannot all read standard input"),
        (["nowhere.txt"], "nowhere.txt"),
        (["text.txt", "--mesh", "shard=2", "--batch-size", "3"], "batch_size = 3 cannot be dealt out evenly to 2"),
        (["text.txt", "--mesh", "shard=2,head=2"], "mesh = 'shard=2,head=2' shares a model in two ways: take shard"),
        (["text.txt", "--mesh", "shard=3"], "mesh = 'shard=3' is for 3 processes, and there are 2: start 3"),
        (["text.txt", "--mesh", "head=3"], "mesh = 'head=3' is for 3 processes, and there are 2: start 3"),
        (
            ["text.txt", "--mesh", "head=2", "--num-attention-heads", "1", "--mixing", "none"],
            "each of 2 ranks as many heads, and num_att",
        ),
    ],
)
def test_bad_input_is_told_once(world: Worlds, folder: Path, arguments: list[str], says: str) -> None:
    told, other = train(world, folder, "two", *TINY, *FOUR_STEPS, *arguments, "--output", "bad", code=2)
    check_error_line(told.err, says)
    assert (told.out, other.out, other.err) == ("", "", "")
    assert not (folder / "bad").exists()


def test_a_budget_in_time_is_not_for_parts_of_a_model(world: Worlds, folder: Path) -> None:
    words = ("text.txt", *TINY, "--time", "5s", "--mesh", "shard=2", "--output", "bad")
    told, _ = train(world, folder, "two", *words, code=2)
    check_error_line(told.err, "sharded steps are not timed beforehand: give --steps or --epochs instead of --time")


def test_ranks_with_other_code(world: Worlds, folder: Path) -> None:
    words = ["train", "text.txt", *TINY, *FOUR_STEPS, "--output", "coded"]
    told, other = world.run(2, programs.on_rank, str(folder), words, True)
    assert (told.code, other.code, other.err) == (2, 2, "")
    check_error_line(told.err, ("on rank 1 of 2: smht's code is 111111111111 here and 000000000000 on rank 0",))
    assert not (folder / "coded").exists()


def test_ranks_with_other_data(world: Worlds, tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"text{rank}.txt").write_text(programs.TEXT[rank:])
    told, other = train(world, tmp_path, "two", "text{rank}.txt", *TINY, *FOUR_STEPS, "--output", "bad", code=2)
    check_error_line(told.err, "on rank 1 of 2: the text's SHA-256 is")
    assert other.err == "" and not (tmp_path / "bad").exists()


def test_ranks_with_other_settings(world: Worlds, folder: Path) -> None:
    told, _ = train(world, folder, "two", "text.txt", *TINY, *FOUR_STEPS, "--seed", "{rank}", "--output", "bad", code=2)
    check_error_line(told.err, "on rank 1 of 2: the settings' SHA-256 is")
    assert not (folder / "bad").exists()


def test_a_run_folder_that_is_not_shared(world: Worlds, tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
        (tmp_path / str(rank) / "text.txt").write_text(programs.TEXT)
    words = ("text.txt", *TINY, *FOUR_STEPS, "--output", "bad")
    told, other = train(world, tmp_path / "{rank}", "two", *words, code=2)
    said = told.err.splitlines(keepends=True)[-1]  # what the run will take is said before
    check_error_line(said, (f"on rank 1 of 2: {tmp_path}/1/bad is not the folder that rank 0 writes to",))
    assert other.err == "" and not list(tmp_path.glob("*/bad"))
