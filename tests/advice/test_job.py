"""One verdict for a job, from the findings of all its ranks."""

from dataclasses import replace

import pytest

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


def test_the_slow_rank_knows_the_line_to_write():
    found = verdict([SLOW], {1: [finding("data", 0.6, "num_workers=4")]}, slow(1))
    assert [(one.cause, one.remedy) for one in found] == [("straggler", "num_workers=4")]


def test_the_verdict_names_the_line_of_the_slow_rank():
    (found,) = verdict([SLOW], {1: [replace(finding("data", 0.6), line="train.py:31 `parse`")]}, slow(1))
    assert found.evidence == "straggler took 0.5, mostly at train.py:31 `parse`"
    assert found.line == "train.py:31 `parse`"


def test_a_slow_ranks_finding_of_another_cause_is_told_with_its_rank():
    found = verdict([SLOW], {1: [finding("compile", 0.4)]}, slow(1))
    assert [(one.cause, one.evidence) for one in found][1:] == [("compile", "Rank 1: compile took 0.4")]
    assert found[0] is SLOW


def test_of_several_explanations_the_largest_has_the_remedy():
    others = {1: [finding("sync", 0.4, "log rarely"), finding("evaluation", 0.06, "evaluate rarely")]}
    (found,) = verdict([SLOW], others, slow(1, cause="host"))
    assert found.remedy == "log rarely"


def test_a_set_of_slow_ranks_gets_the_remedy_of_its_worst_rank():
    others = {1: [finding("data", 0.3, "num_workers=2")], 3: [finding("data", 0.6, "num_workers=4")]}
    (found,) = verdict([SLOW], others, slow(1, 3))
    assert found.remedy == "num_workers=4"


def test_findings_of_other_ranks_alone_are_named_with_their_ranks():
    others = {2: [finding("gc", 0.2)], 3: [finding("gc", 0.3)], 4: [finding("gc", 0.04), finding("host", None)]}
    found = verdict([finding("data", 0.1)], others, None)
    assert [(one.cause, one.share) for one in found] == [("gc", 0.3), ("data", 0.1)]
    assert found[0].evidence == "Ranks 2 and 3: gc took 0.3"


def test_a_cause_that_rank_0_found_is_told_by_rank_0():
    own = finding("data", 0.2)
    assert verdict([own], {1: [finding("data", 0.3)]}, None) == (own,)


def test_a_stall_under_way_stays_first():
    own = finding("stall", 0.01)
    assert verdict([own], {1: [finding("gc", 0.3)]}, None)[0] is own


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
