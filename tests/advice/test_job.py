"""One verdict for a job, from the findings of all its ranks."""

from dataclasses import replace
from pathlib import Path

import pytest
from snapshots import matches

from perf_callbacks.advice.job import FindingNotes, verdict
from perf_callbacks.kernel.records.fit_records import Finding
from perf_callbacks.kernel.records.summary_parts import StragglerSummary


def finding(cause, share, remedy="a line"):
    return Finding(cause=cause, share=share, evidence=f"{cause} took {share}", remedy=remedy)


def slow(*ranks, cause="data"):
    return StragglerSummary(
        steps=100, seconds=10.0, costliest=((ranks[0], cause, 5.0, 90),), costliest_ranks=(tuple(ranks),), slowdown=2.0
    )


SLOW = finding("straggler", 0.5, "more loader workers")


STALL = finding("stall", 0.01)
CASES = {
    "the slow rank knows the line to write": ([SLOW], {1: [finding("data", 0.6, "num_workers=4")]}, slow(1)),
    "the slow rank knows a line": ([SLOW], {1: [replace(finding("data", 0.6), line="train.py:31 `parse`")]}, slow(1)),
    "the slow rank has another cause": ([SLOW], {1: [finding("compile", 0.4)]}, slow(1)),
    "the largest of several explanations": (
        [SLOW],
        {1: [finding("sync", 0.4, "log rarely"), finding("evaluation", 0.06, "evaluate rarely")]},
        slow(1, cause="host"),
    ),
    "a set of slow ranks": (
        [SLOW], {1: [finding("data", 0.3, "num_workers=2")], 3: [finding("data", 0.6, "num_workers=4")]}, slow(1, 3),
    ),
    "findings of other ranks alone": (
        [finding("data", 0.1)],
        {2: [finding("gc", 0.2)], 3: [finding("gc", 0.3)], 4: [finding("gc", 0.04), finding("host", None)]},
        None,
    ),
    "rank 0 found the cause": ([finding("data", 0.2)], {1: [finding("data", 0.3)]}, None),
    "a stall under way stays first": ([STALL], {1: [finding("gc", 0.3)]}, None),
}  # fmt: skip
"""By name: findings of rank 0, those of other ranks, and the stragglers."""


def test_verdicts_of_jobs_are_as_their_snapshot():
    """`WRITE_SNAPSHOTS=1` writes it anew."""
    shown = ""
    for name, case in CASES.items():
        lines = [f"{one.cause} {one.share}: {one.evidence}; try {one.remedy} ({one.line})" for one in verdict(*case)]
        shown += "\n".join([f"=== {name}", *lines, ""])
    assert matches(Path(__file__).with_name("verdicts.txt"), shown)


class FakeChannel:
    def __init__(self, rank, notes, world_size=3):
        self.rank, self._notes, self.world_size = rank, notes, world_size

    def put(self, note):
        self._notes[self.rank] = note

    def notes(self):
        return self._notes


class FakeExchange:
    """Runs a round for each wake."""

    failure = None

    def __init__(self, handler, channel):
        self._handler, self._channel, self.rounds = handler, channel, 0

    def wake(self):
        self.rounds += 1
        self._handler.round(self._channel, 0.0)


def test_findings_travel_from_the_end_of_a_rank_to_rank_0(monkeypatch):
    monkeypatch.setattr("perf_callbacks.advice.job.sleep", lambda _: None)
    notes, leader = {}, FindingNotes()
    for rank in (1, 2):
        follower = FindingNotes()
        follower.mine = (finding("data", 0.5),)
        assert follower.round(FakeChannel(rank, notes), 0.0) is None
        follower.mine = (finding("data", 0.6),)
        follower.leave(FakeChannel(rank, notes))
    leader.leave(FakeChannel(0, notes))
    leader.gather(FakeExchange(leader, FakeChannel(0, notes)), 3)
    assert leader.others == {1: (finding("data", 0.6),), 2: (finding("data", 0.6),)}


@pytest.mark.parametrize("notes", [{}, {1: "torn {"}])
def test_rank_0_does_not_wait_long_for_ranks_without_a_note(monkeypatch, notes):
    now = [0.0]
    monkeypatch.setattr("perf_callbacks.advice.job.monotonic", lambda: now[0])
    monkeypatch.setattr("perf_callbacks.advice.job.sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    leader = FindingNotes()
    exchange = FakeExchange(leader, FakeChannel(0, notes))
    leader.gather(exchange, 2)
    assert leader.others == {}
    assert exchange.rounds == 25


def test_findings_so_far_reach_rank_0_while_the_job_trains():
    notes, leader, follower = {}, FindingNotes(), FindingNotes()
    follower.set((finding("data", 0.5),), FakeExchange(follower, FakeChannel(1, notes)))
    assert leader.others == {}
    leader.set((), FakeExchange(leader, FakeChannel(0, notes)))
    assert leader.others == {1: (finding("data", 0.5),)}


def test_in_a_job_of_many_ranks_findings_are_written_at_the_end_alone():
    notes, follower = {}, FindingNotes()
    follower.set((finding("data", 0.5),), FakeExchange(follower, FakeChannel(1, notes, 65)))
    assert notes == {}
    follower.leave(FakeChannel(1, notes, 65))
    assert 1 in notes
