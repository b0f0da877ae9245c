"""Processes agree on what to do, and on errors: told once, with the number of the rank that has it."""

import random
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from torch.distributed import HashStore

from helpers import agreement as programs
from helpers.processes import Worlds
from smht.distributed import lost
from smht.distributed.launch import warning_about_cores
from smht.distributed.meeting import meet
from smht.distributed.processes import Processes
from smht.errors import SmhtError

RANKS = 4


@pytest.mark.parametrize("failing", [0, 2])
@pytest.mark.parametrize("usage", [True, False])
def test_what_fails_on_one_fails_on_all(world: Worlds, failing: int, usage: bool) -> None:
    outcomes = world.run(RANKS, programs.one_fails, failing, usage)
    kind, code = ("UsageError", 2) if usage else ("SmhtError", 1)
    assert outcomes[0] == (kind, "no good" if failing == 0 else "on rank 2 of 4: no good", code, False)
    assert outcomes[1:] == [("ToldError", "no good", code, True)] * 3


def test_what_succeeds_on_all_goes_on(world: Worlds) -> None:
    assert world.run(RANKS, programs.one_fails, -1, True) == [("ok", str(rank), 0, False) for rank in range(RANKS)]


def test_the_first_acts_for_all(world: Worlds) -> None:
    assert world.run(RANKS, programs.first_acts, False) == [("ok", "7", 0, False)] * RANKS
    told, *others = world.run(RANKS, programs.first_acts, True)
    assert told == ("SmhtError", "the disk is full", 1, False)
    assert others == [("ToldError", "the disk is full", 1, True)] * 3


def test_other_data_on_a_rank(world: Worlds) -> None:
    told, *others = world.run(RANKS, programs.differing, 3)
    assert told == (
        "UsageError",
        "on rank 3 of 4: the text's SHA-256 is bbbbbbbbbbbb here and cccccccccccc on rank 0: give all ranks the same",
        2,
        False,
    )
    assert all(other[0] == "ToldError" for other in others)
    assert world.run(RANKS, programs.differing, -1) == [("ok", "None", 0, False)] * RANKS


def test_one_that_is_asked_to_stop_stops_all(world: Worlds) -> None:
    assert world.run(RANKS, programs.flags, 2) == [True] * RANKS
    assert world.run(RANKS, programs.flags, -1) == [False] * RANKS


def test_a_run_folder_that_the_ranks_do_not_share(world: Worlds, tmp_path: Path) -> None:
    assert world.run(RANKS, programs.folders, str(tmp_path)) == [("ok", "None", 0, False)] * RANKS
    kind, line, code, _ = world.run(RANKS, programs.folders, None)[0]
    assert (kind, code) == ("UsageError", 2)
    assert re.fullmatch(r"on rank 1 of 4: \S+ is not the folder that rank 0 writes to: .*\n?", line)


def test_the_code_has_one_hash(world: Worlds) -> None:
    assert re.fullmatch(r"[0-9a-f]{64}", programs.code())
    assert programs.code() == programs.code()


@pytest.mark.parametrize(
    ("left", "alive", "says"),
    [
        ({0: True, 2: False}, [], "ranks 1, 3 of 4 did not answer within 5 s; go on with --resume"),
        ({1: False, 2: False, 3: False}, [], "rank 0 of 4 is gone; go on with --resume"),
        ({2: False}, [], "ranks 0, 1, 3 of 4 are gone; go on with --resume"),
        (dict.fromkeys(range(4), False), [], "the 4 ranks lost each other: broken pipe; go on with --resume"),
        # As in data=2,head=2, where 0 waits for 1 and 2, which see that 3 is gone.
        ({1: False, 2: False}, [0], "rank 3 of 4 is gone; go on with --resume"),
        ({2: True}, [0, 1], "rank 3 of 4 did not answer within 5 s; go on with --resume"),
        # A process that is alive and hangs.
        ({0: True, 1: True, 2: True}, [3], "rank 3 of 4 did not answer within 5 s; go on with --resume"),
    ],
)
def test_those_that_are_left_name_the_lost(
    monkeypatch: pytest.MonkeyPatch, left: dict[int, bool], alive: list[int], says: str
) -> None:
    monkeypatch.setattr(lost, "_GRACE_SECONDS", 0.5)
    monkeypatch.setattr(lost, "_WATCH_SECONDS", 0.02)
    store = HashStore()
    said: dict[int, tuple[str, bool]] = {}

    def process(rank: int) -> Processes:
        alone = Processes()
        alone.rank, alone.size = rank, RANKS
        return alone

    def notice(rank: int, waited: bool) -> None:
        said[rank] = lost.explain_loss(process(rank), waited, 5.0, "broken pipe", store)

    threads = [threading.Thread(target=notice, args=each) for each in left.items()]
    with ExitStack() as entered:
        for rank in alive:
            entered.enter_context(lost.answering(process(rank), store))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {rank: line for rank, (line, _) in said.items()} == dict.fromkeys(left, says)
    assert sum(tells for _, tells in said.values()) == 1


def test_ranks_that_meet_again_share_nothing_with_the_lost() -> None:
    """As under torchrun, whose store outlives its workers: a rank dies in the middle of meeting, too."""
    store = HashStore()
    store.set("smht/hello/1", "drawn by a process that is gone")
    for meeting in range(3):
        # In any order: the first waits for those that come late.
        order = random.Random(meeting).sample(range(3), 3)
        with ThreadPoolExecutor(3) as threads:
            coming = {rank: threads.submit(meet, store, rank, 3, 20) for rank in order}
        met = [coming[rank].result() for rank in range(3)]
        assert not met[0].check(["address"])
        met[1].set("address", f"of meeting {meeting}")
        assert [own.get("address") for own in met] == [f"of meeting {meeting}".encode()] * 3


def test_ranks_that_do_not_come_are_named() -> None:
    store = HashStore()
    store.set("smht/hello/2", "drawn by a process that is gone")
    with pytest.raises(SmhtError, match=r"ranks 1, 2 of 3 did not come in 0\.1 s"):
        meet(store, 0, 3, 0.1)


def test_one_process_talks_to_nobody() -> None:
    alone = Processes()
    assert (alone.size, alone.rank, alone.is_first) == (1, 0, True)
    assert alone.first(lambda: 3) == 3
    assert alone.collect("x") == ["x"]
    assert alone.any(True) and not alone.any(False)
    alone.agree({"the text": "x"})


def test_more_processes_than_cores() -> None:
    assert warning_about_cores(1) is None
    assert re.fullmatch(r"warning: 99999 processes share \d+ cores?, .*", warning_about_cores(99999) or "")
