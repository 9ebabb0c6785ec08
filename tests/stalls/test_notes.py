"""Ranks that leave each other notes about stalls: several in one process, their rounds done by hand."""

import dataclasses

import pytest
import torch.distributed as dist
from jobs.exchanges import ExchangeJob

from perf_callbacks.ranks import node, rounds
from perf_callbacks.ranks.channels import Channel
from perf_callbacks.ranks.node import Node
from perf_callbacks.ranks.store import StoreNotes
from perf_callbacks.stalls.diagnosis import ENDED, RUNNING, STALLED, Note
from perf_callbacks.stalls.notes import StallNotes

PATIENCE = 60.0
BUSY = Note(
    state=RUNNING, step=7, stage="data", since_seconds=1.0, spanned=False, waits=False, place="loader.py:41 `load`"
)  # fmt: skip
WAITS = dataclasses.replace(BUSY, stage="backward", waits=True, place="train.py:50 `main`")


class Job:
    """Ranks that notice a stall at second 60, unless they are silent or do something else."""

    def __init__(self, size, fit="fit", board=None):
        self.board = board or StoreNotes(dist.HashStore())
        self.channels = [Channel("stalls", self.board, fit, rank=rank, world_size=size) for rank in range(size)]
        self.ranks = [StallNotes() for _ in range(size)]
        self.states = dict.fromkeys(range(size), WAITS)
        self.silent, self.told = set(), []

    def go(self, start, stop):
        for second in range(start, stop):
            for rank, one in enumerate(self.ranks):
                if rank in self.silent:
                    continue
                note = self.states[rank]
                if note.state == RUNNING and second % 15 == 5:
                    one.say(dataclasses.replace(note, since_seconds=float(second)), PATIENCE, doubt=second >= 30)
                one.round(self.channels[rank], float(second))
                if one.blamed is not None and rank not in [by for by, _ in self.told]:
                    self.told.append((rank, one.blamed.text))

    def stall(self, *ranks):
        for rank in ranks or {*range(len(self.ranks))} - self.silent:
            self.states[rank] = dataclasses.replace(self.states[rank], state=STALLED)
            self.ranks[rank].say(self.states[rank], PATIENCE)

    def on(self, *ranks):
        for rank in ranks or range(len(self.ranks)):
            self.states[rank] = dataclasses.replace(self.states[rank], state=RUNNING, step=self.states[rank].step + 1)
            self.ranks[rank].say(self.states[rank], PATIENCE)


def test_rank_0_tells_once_and_all_know_it():
    job = Job(4)
    job.states[3] = BUSY
    job.go(0, 60)
    assert job.told == []
    job.stall()
    job.go(60, 80)
    ((teller, text),) = job.told
    assert (teller, text.startswith("Rank 3 "), BUSY.place in text, WAITS.place in text) == (0, True, True, True)
    assert all(one.told for one in job.ranks)


@pytest.mark.parametrize("silent", [0, 1, 5])
def test_a_silent_rank_is_named_with_its_last_note(silent):
    job = Job(6)
    job.states[silent] = BUSY
    job.go(0, 6)
    job.silent.add(silent)
    job.go(6, 60)
    job.stall()
    job.go(60, 72)
    ((teller, text),) = job.told
    assert teller == (1 if silent == 0 else 0)
    assert text.startswith(
        f"Rank {silent} is silent, last heard of in step 8 in data: loader.py:41 `load`. 5 ranks wait"
    )


def test_another_rank_tells_where_several_of_the_first_are_silent():
    job = Job(9)
    job.go(0, 6)
    job.silent |= {0, 1, 2}
    job.go(6, 60)
    job.stall()
    job.go(60, 140)
    ((teller, text),) = job.told
    assert teller == 3
    assert text.startswith("Ranks 0, 1 and 2 are silent")


def test_a_rank_without_the_callback_is_named():
    job = Job(3)
    job.silent.add(2)
    job.go(0, 60)
    job.stall()
    job.go(60, 70)
    assert job.told[0][1].startswith("Rank 2 never reported")


def test_a_rank_that_ended_is_named_and_another_fit_is_not_heard():
    board = StoreNotes(dist.HashStore())
    earlier = Job(3, "earlier", board)
    earlier.go(0, 20)
    job = Job(3, "fit", board)
    job.go(0, 30)
    job.ranks[1].say(dataclasses.replace(WAITS, state=ENDED, step=40), 0.0)
    job.ranks[1].leave(job.channels[1])
    job.silent.add(1)
    job.go(30, 60)
    job.stall()
    job.go(60, 70)
    assert job.told == [
        (0, "Rank 1 has ended the training after step 40. 2 ranks wait in backward: train.py:50 `main`."),
    ]
    assert not any(one.told for one in earlier.ranks)


def test_a_checkpoint_of_a_rank_is_waited_for():
    job = Job(4)
    job.states[0] = dataclasses.replace(BUSY, stage="checkpoint", spanned=True)
    job.go(0, 60)
    job.stall(1, 2, 3)
    job.go(60, 500)
    assert job.told == []
    job.on()
    job.go(500, 520)
    assert job.told == []


def test_a_checkpoint_that_hangs_is_told():
    job = Job(4)
    job.states[2] = dataclasses.replace(BUSY, stage="checkpoint", spanned=True)
    job.go(0, 60)
    job.stall(0, 1, 3)
    job.go(60, 600)
    assert job.told == []
    job.stall(2)
    job.go(600, 610)
    ((_, text),) = job.told
    assert (text.startswith("Rank 2 "), " checkpoint" in text, BUSY.place in text) == (True, True, True)


def test_a_rank_stopped_in_its_checkpoint_is_told_after_longer_patience():
    job = Job(2)
    job.states[1] = dataclasses.replace(BUSY, stage="checkpoint", spanned=True)
    job.go(0, 6)
    job.silent.add(1)
    job.go(6, 60)
    job.stall()
    job.go(60, 590)
    assert job.told == []
    job.go(590, 610)
    assert job.told[0][1].startswith("Rank 1 is silent, last heard of in step 8 in a checkpoint")


def test_a_rank_that_hangs_while_the_others_go_on_tells_it_itself():
    job = Job(4)
    job.states[2] = BUSY
    job.go(0, 60)
    job.stall(2)
    job.go(60, 100)
    ((teller, text),) = job.told
    assert (teller, text.startswith("Rank 2 "), BUSY.place in text) == (2, True, True)


def test_a_later_stall_is_told_again_and_a_lasting_stall_is_not():
    job = Job(3)
    job.go(0, 60)
    job.stall()
    job.go(60, 400)
    assert len(job.told) == 1
    job.on()
    job.go(400, 470)
    assert not any(one.told for one in job.ranks)
    job.told.clear()
    job.stall()
    job.go(470, 490)
    assert [rank for rank, _ in job.told] == [0]


def test_few_of_many_ranks_read_all_notes():
    job, reads = Job(64), []
    inner = job.board.read_some

    def read_some(*keys):
        reads.append(len(keys))
        return inner(*keys)

    job.board.read_some = read_some
    job.states[0] = dataclasses.replace(BUSY, stage="checkpoint", spanned=True)
    job.go(0, 60)
    job.stall(*range(1, 64))
    before = len(reads)
    job.go(60, 160)
    assert len(reads) - before <= 100  # one rank looks, now and then


@pytest.fixture
def machines(tmp_path, monkeypatch):
    """Eight ranks on two machines, of which the first rank talks with the store; and their notes."""
    monkeypatch.setattr(rounds, "OBEYED", {})

    def of(rank):
        first = rank - rank % 4
        return Node(range(first, first + 4), rank, tmp_path / f"node{first}")

    job, notes = ExchangeJob(world_size=8, nodes=of), [StallNotes() for _ in range(8)]
    for exchange, own in zip(job.ranks, notes, strict=True):
        exchange.open("stalls", own)
    job.step()
    job.step()
    return job, notes


def test_a_stall_is_told_once_whatever_machine_the_rank_is_on(machines):
    job, notes = machines
    for own in notes:
        own.say(BUSY, PATIENCE)
    job.step()
    stalled = dataclasses.replace(WAITS, state=STALLED)
    for rank, own in enumerate(notes):
        own.say(dataclasses.replace(stalled, stage="data", waits=False) if rank == 6 else stalled, PATIENCE)
    for _ in range(15):
        job.now += 2
        job.step()
    assert [own.told for own in notes] == [True] * 8
    (text,) = [own.blamed.text for own in notes if own.blamed is not None]
    assert text.startswith("Rank 6 ")
    for own in notes:
        own.say(dataclasses.replace(BUSY, step=8), PATIENCE)
    job.step()
    job.step()
    assert [own.told for own in notes] == [False] * 8


def test_a_rank_that_ended_says_so_through_the_first_of_its_machine(machines):
    job, notes = machines
    notes[7].say(dataclasses.replace(BUSY, state=ENDED), 0.0)
    job.leave(7)
    notes[4].say(BUSY, PATIENCE)
    job.now += node.LOOK_SECONDS
    job.step(4)
    note = dist.PrefixStore("perf_callbacks", job.store).get("stalls 7").decode()
    assert ENDED in note
