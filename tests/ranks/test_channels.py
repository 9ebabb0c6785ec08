"""Channels between ranks, whose notes the exchange carries unread, whether a rank connects to the store or not."""

import pytest
from jobs.exchanges import ExchangeJob

from perf_callbacks.ranks import node, rounds
from perf_callbacks.ranks.channels import ChannelHandler
from perf_callbacks.ranks.node import Node


class Talk(ChannelHandler):
    """Leaves the note that it is given, and reads all others."""

    def __init__(self, note):
        self.note = note
        self.shared, self.claims = "", None
        self.read, self.heard, self.claimed = {}, "", None

    def round(self, channel, now):
        channel.put(self.note)
        if self.shared:
            channel.share(self.shared)
            self.shared = ""
        self.heard = channel.shared()
        if self.claims is not None:
            self.claimed, self.claims = channel.claim(self.claims), None
        self.read = channel.notes()
        return 7.0

    def leave(self, channel):
        channel.put(f"{self.note} has left")


@pytest.fixture(autouse=True)
def _no_fit_before(monkeypatch):
    monkeypatch.setattr(rounds, "OBEYED", {})


@pytest.fixture(params=["each rank connects", "two machines"])
def nodes(request, tmp_path):
    """The machine of a rank, if one of its ranks talks for all: ranks 0 and 1 are on one, 2 and 3 on another."""

    def of(rank):
        first = rank - rank % 2
        return None if request.param != "two machines" else Node(range(first, first + 2), rank, tmp_path / f"n{first}")

    return of


def opened(job, name="talk"):
    talks = [Talk(f"rank {rank}") for rank in range(job.world_size)]
    for exchange, talk in zip(job.ranks, talks, strict=True):
        exchange.open(name, talk)
    for _ in range(4):
        job.step()
        job.now += node.LOOK_SECONDS
    return talks


ALL = {rank: f"rank {rank}" for rank in range(4)}


def test_ranks_that_connect_read_all_notes_and_a_shared_note_reaches_all(nodes):
    talks = opened(job := ExchangeJob(world_size=4, nodes=nodes))
    assert [talk.read for talk in talks] == ([ALL] * 4 if nodes(0) is None else [ALL, {}, ALL, {}])
    talks[2].shared = "here"
    for _ in range(3):
        job.step()
    assert [talk.heard for talk in talks] == ["here"] * 4


def test_the_first_of_several_ranks_claims_the_shared_note():
    job = ExchangeJob(world_size=3)
    talks = opened(job)
    channels = [exchange.rounds.channels["talk"] for exchange in job.ranks]
    assert [channel.claim(f"by {channel.rank}") for channel in channels] == [True, False, False]
    job.step()
    assert [talk.heard for talk in talks] == ["by 0"] * 3


def test_a_claim_fails_once_another_rank_has_written():
    job = ExchangeJob(world_size=2)
    talks = opened(job)
    first, second = [exchange.rounds.channels["talk"] for exchange in job.ranks]
    first.share("looking")
    assert not second.claim("mine")
    assert second.shared() == "looking"
    assert second.claim("mine")
    job.step()
    assert [talk.heard for talk in talks] == ["mine"] * 2


def test_notes_of_an_earlier_fit_are_not_seen(nodes):
    earlier = ExchangeJob(world_size=4, nodes=nodes)
    opened(earlier)[0].shared = "old"
    earlier.step()
    earlier.end()
    job = ExchangeJob(world_size=4, store=earlier.store, nodes=nodes)
    job.ranks[0].open("talk", talk := Talk("new"))
    job.ranks[2].open("talk", other := Talk("new"))
    for _ in range(3):
        job.step()
    assert talk.read == other.read == {0: "new", 2: "new"}
    assert talk.heard == other.heard == ""
    talk.claims = "mine"
    job.step()
    assert talk.claimed


def test_a_forgotten_note_is_passed_on_to_no_rank_of_the_machine(tmp_path):
    job = ExchangeJob(world_size=2, nodes=lambda rank: Node(range(2), rank, tmp_path / "n0"))
    talks = opened(job)
    channel = job.ranks[0].rounds.channels["talk"]
    channel.share("told")
    talks[0].round = lambda *_: channel.forget()
    job.step()
    job.step()
    assert talks[1].heard == ""


def test_channels_have_notes_of_their_own(nodes):
    job = ExchangeJob(world_size=4, nodes=nodes)
    first, other = opened(job, "first"), opened(job, "other")
    other[0].shared = "here"
    for rank, talk in enumerate(other):
        talk.note = f"other {rank}"
    for _ in range(4):
        job.step()
        job.now += node.LOOK_SECONDS
    assert first[0].read == ALL
    assert other[0].read == {rank: f"other {rank}" for rank in range(4)}
    assert (first[0].heard, other[0].heard) == ("", "here")


def test_the_last_note_of_a_rank_reaches_the_others_after_it_has_left(nodes):
    job = ExchangeJob(world_size=4, nodes=nodes)
    talks = opened(job)
    job.leave(3)
    for _ in range(2):
        job.now += node.LOOK_SECONDS
        job.step(0, 1, 2)
    job.step(0)
    assert talks[0].read == {**ALL, 3: "rank 3 has left"}


def test_a_round_is_due_when_the_handler_wants_it():
    job = ExchangeJob(world_size=2)
    assert job.step() == [None, None]
    opened(job)
    assert job.step() == [7.0, 7.0]


def test_an_error_in_a_handler_ends_the_exchange_of_its_rank():
    job = ExchangeJob(world_size=2)
    (talk, _) = opened(job)
    talk.round = None
    job.step()
    assert job.failures == ["TypeError: 'NoneType' object is not callable", None]
