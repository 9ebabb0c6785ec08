"""Ranks that compute on devices, with fake streams: waits for other ranks are no part of a rank's own time."""

import pytest
import torch
import torch.distributed as dist
from fakes import FakeClock, FakeStream
from jobs import until
from torch import nn

from perf_callbacks import PerfConfig
from perf_callbacks.kernel.engine.marks import BACK, END, WAIT
from perf_callbacks.kernel.engine.stages import Stage
from perf_callbacks.kernel.engine.tape import Tape
from perf_callbacks.kernel.fit.location import FitLocation
from perf_callbacks.kernel.fit.recorder import Recorder
from perf_callbacks.kernel.fit.training_objects import FitContext
from perf_callbacks.kernel.process import device
from perf_callbacks.kernel.process.device_facts import Timing
from perf_callbacks.kernel.process.event_timeline import EventTimeline
from perf_callbacks.kernel.process.waits import WAITS
from perf_callbacks.kernel.settings.resolution import resolve
from perf_callbacks.ranks import exchange, store as board
from perf_callbacks.stragglers import observer as stragglers
from perf_callbacks.stragglers.text import UNSTAGED, lines

WINDOW = 20
WORK = torch._C._distributed_c10d.Work


class Token:
    """Stands for a fit."""


class Rank:
    """A rank whose device works as long as the rank is told, or which has no clock but the host's."""

    def __init__(self, directory, rank, monkeypatch, *, unstaged):
        self.clock, self.stream, self.model = FakeClock(), FakeStream(), nn.Linear(1, 1)
        timing = Timing(unstaged=unstaged) if unstaged else Timing(EventTimeline(self.stream.event))
        monkeypatch.setattr(device.Cpu, "timing", lambda _: timing)
        settings = resolve(PerfConfig(window=WINDOW, gc="off"), {})
        place = FitLocation(
            integration="loop", directory=directory, device=torch.device("cpu"), rank=rank, world_size=2
        )
        self.recorder = Recorder(settings, place, ranks=exchange.meet(place, settings.config), clock=self.clock)
        self.recorder.observe(stragglers.begin(self.recorder, FitContext(model=self.model)))

    def spend(self, mark, seconds):
        self.recorder.enter(mark)
        self.clock.sleep(0.001)
        self.stream.work(seconds)

    def step(self, number, *, other=0.5, waited=0.0):
        self.spend(Stage.FORWARD, 1.0)
        self.spend(Stage.BACKWARD, 2.0)
        self.spend(Stage.OPTIMIZER, 0.25)
        self.spend(Stage.OTHER, other)
        self.spend(WAIT, waited)
        self.spend(BACK, 0.0)
        self.recorder.end_step(number)
        self.stream.run()


@pytest.fixture
def job(tmp_path, monkeypatch):
    store, ranks = dist.HashStore(), []
    monkeypatch.setattr(board, "default_store", lambda: store)

    def open_two(*, unstaged=None):
        ranks.extend([Rank(tmp_path, rank, monkeypatch, unstaged=unstaged) for rank in range(2)])
        return ranks

    yield open_two
    for rank in ranks:
        rank.recorder.close()


def train(ranks, late):
    """Rank 1 is late in some steps, and rank 0 waits for it in a collective."""
    for number in range(1, 2 * WINDOW + 2):
        seconds = late.get(number, 0.0)
        ranks[0].step(number, waited=seconds)
        ranks[1].step(number, other=0.5 + seconds)
    for rank in ranks:
        rank.recorder.engine.flush(rank.clock())


def test_the_rank_that_others_wait_for_is_slow(job):
    ranks = job()
    train(ranks, {8: 4.0, 27: 2.0})
    until(lambda: ranks[0].recorder.summary.stragglers.steps >= 2 * WINDOW - 1)
    summary = ranks[0].recorder.summary.stragglers
    assert [(rank, seconds, steps) for rank, _, seconds, steps in summary.costliest] == [(1, 6.0, 2)]
    assert ranks[0].recorder.engine.waits_timed
    assert (summary.comparable, summary.waits_timed) == (True, False)
    seconds = [rank.recorder.summary.stage_seconds["communication_time"] for rank in ranks]
    assert seconds == [6.0, 0.0]


def test_ranks_without_stages_are_not_compared_and_get_no_hooks(job):
    ranks = job(unstaged="the device has no clock")
    train(ranks, {8: 4.0})
    until(lambda: ranks[0].recorder.ranks.latest is not None)
    summary = ranks[0].recorder.summary
    assert (summary.stragglers.steps, summary.stragglers.comparable) == (0, False)
    assert [*lines(summary.stragglers)] == [UNSTAGED]
    assert dict(summary.stage_seconds) == {}
    assert not ranks[0].recorder.engine.waits_timed
    assert not ranks[0].model.weight._post_accumulate_grad_hooks


def test_a_wait_of_torch_becomes_events_around_the_wait(monkeypatch):
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    stream = FakeStream()
    monkeypatch.setattr(WORK, "wait", lambda *_: stream.work(3.0))
    timeline = EventTimeline(stream.event)
    tape = Tape(timeline.mark)
    tape.begin(0.0)
    timeline.mark(Stage.OTHER)
    fit = Token()
    leave = WAITS.watch(fit, tape, lambda: 0.0)
    try:
        for stage in (Stage.FORWARD, Stage.OPTIMIZER):
            tape.write((stage, 0.0))
            stream.work(1.0)
            dist.all_reduce(torch.ones(2), async_op=True).wait()
        tape.write((END, 0.0))
    finally:
        leave()
        dist.destroy_process_group()
    stream.run()
    ((_, forward, _, optimizer, communication, *_),) = timeline.ready()
    assert (forward, optimizer, communication) == (1.0, 1.0, 6.0)
