"""Two ranks in one process, whose steps take as long as they are told: from the tape to summary, rows and journal."""

import gc
import itertools
import logging
import os
import re
import time
import weakref
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from fakes import FakeClock
from metric_keys import needing
from torch import nn
from torch._dynamo import compiled_autograd
from trainings.runs import records

from perf_callbacks import PerfConfig
from perf_callbacks.kernel.engine.marks import Pause
from perf_callbacks.kernel.engine.observer import Observer
from perf_callbacks.kernel.engine.stages import Stage
from perf_callbacks.kernel.fit.place import Place
from perf_callbacks.kernel.fit.recorder import Recorder
from perf_callbacks.kernel.fit.setup import Setup, Training
from perf_callbacks.kernel.process.waits import WAITS
from perf_callbacks.kernel.records.fit_records import Steps, Summary
from perf_callbacks.kernel.records.metric_table import SEVERAL_RANKS
from perf_callbacks.kernel.records.rank_records import Straggler
from perf_callbacks.kernel.settings.resolution import resolve
from perf_callbacks.ranks import exchange, store as board
from perf_callbacks.stragglers import gradient_moments, observer as stragglers

WINDOW = 20
NO_MORE = "perf_callbacks: the search for slow ranks has ended"


class Wrapper(nn.parallel.DistributedDataParallel):
    """A wrapper without a process group, which says that it reduces gradients."""

    def __init__(self):
        nn.Module.__init__(self)
        self.require_backward_grad_sync = True


class Rank:
    """A rank of a job that trains one number."""

    def __init__(self, directory, rank, *, world_size=2, timed=True, **config):
        self.clock, self.model, wrapper = FakeClock(), nn.Linear(1, 1), Wrapper()
        self.wrapper = wrapper  # only weakly held elsewhere
        self.timed = timed
        settings = resolve(PerfConfig(**{"window": WINDOW, "gc": "observe"} | config), {})
        place = Place(
            integration="loop",
            directory=directory,
            device=torch.device("cpu"),
            rank=rank,
            world_size=world_size,
        )
        self.recorder = Recorder(settings, place, ranks=exchange.meet(place, settings.config), clock=self.clock)
        observer = stragglers.begin(
            self.recorder, Training(model=self.model if timed else None, setup=lambda: Setup(called=wrapper))
        )
        if observer is not None:
            self.recorder.observe(observer)

    def spend(self, stage, seconds):
        self.recorder.enter(stage)
        self.clock.sleep(seconds)

    def work(self, *, data=0.0, host=0.0, gc=0.0):
        """A step up to the last gradient."""
        self.spend(Stage.DATA, 0.125 + data)
        self.spend(Stage.FORWARD, 1.0 + host)
        self.recorder.enter(Stage.BACKWARD)
        if gc:
            self.recorder.on_collection(Pause(2, self.clock.now, gc, 0, True, True))
            self.clock.sleep(gc)
        self.clock.sleep(2.0)
        self.model(torch.ones(1, 1)).sum().backward()

    def meet(self, now, number):
        """The step ends when the slowest rank is there."""
        self.clock.now = now
        self.spend(Stage.OPTIMIZER, 0.25)
        self.recorder.end_step(number)


@pytest.fixture
def job(tmp_path, monkeypatch):
    store, opened = dist.HashStore(), []
    monkeypatch.setattr(board, "default_store", lambda: store)
    monkeypatch.setattr(gradient_moments.os, "pread", lambda *_: b"9 0 9")  # nobody waits for a CPU on this clock

    def open_all(size=2, **options):
        opened.extend([Rank(tmp_path, rank, world_size=size, **options) for rank in range(size)])
        return opened

    yield open_all
    for rank in opened:
        rank.recorder.close()


def train(ranks, steps, faults=()):
    hit = {(step, rank): {cause: seconds} for step, rank, cause, seconds in faults}
    for number in range(1, steps + 1):
        for place, rank in enumerate(ranks):
            rank.work(**hit.get((number, place), {}))
        last = max(rank.clock.now for rank in ranks)
        for rank in ranks:
            rank.meet(last, number)


def until(condition):
    while not condition():  # every test has a time limit
        time.sleep(0.01)


def compared(rank, steps):
    until(lambda: rank.recorder.summary.stragglers.steps >= steps)
    return rank.recorder.summary


def test_ranks_that_are_late_are_named_with_step_cause_and_seconds(tmp_path, job):
    ranks = job()
    train(ranks, 2 * WINDOW, [(8, 1, "data", 2.0), (13, 0, "gc", 3.0), (27, 1, "host", 4.0)])
    summary = compared(ranks[0], 2 * WINDOW - 1)
    assert summary.stragglers.seconds_by_cause == {"data": 2.0, "gc": 3.0, "host": 4.0}
    assert summary.stragglers.costliest == ((1, "host", 4.0, 1), (0, "gc", 3.0, 1), (1, "data", 2.0, 1))
    assert summary.stragglers.slowdown == pytest.approx(summary.stragglers.seconds / (summary.stragglers.seconds - 9.0))
    assert summary.stragglers.backward_waiting == pytest.approx(6.0 / (39 * 2.0 + 6.0 + 3.0), rel=0.1)
    row, of_rank_1 = (rank.recorder.row(2 * WINDOW) for rank in ranks)
    assert row["perf/straggler_loss"] == 9.0
    assert row.keys() - of_rank_1.keys() == needing(SEVERAL_RANKS)
    assert ranks[0].recorder.whole(2 * WINDOW)["perf/run/straggler_loss"] == 9.0
    for rank in ranks:
        rank.recorder.close()
    assert records(tmp_path, Straggler) == [
        Straggler(step=8, rank=1, cause="data", seconds_lost=2.0),
        Straggler(step=13, rank=0, cause="gc", seconds_lost=3.0),
        Straggler(step=27, rank=1, cause="host", seconds_lost=4.0),
    ]


def test_rows_have_what_was_lost_since_the_last_row(job):
    ranks = job()
    train(ranks, WINDOW, [(8, 1, "data", 2.0)])
    compared(ranks[0], WINDOW - 1)
    assert [ranks[0].recorder.row(WINDOW)["perf/straggler_loss"] for _ in range(1)] == [2.0]
    train(ranks, 3)
    assert ranks[0].recorder.row(WINDOW + 3)["perf/straggler_loss"] == 0.0


def test_a_rank_that_is_slow_for_long_is_warned_of_once(job, caplog):
    ranks = job()
    train(ranks, 4 * WINDOW, [(step, 1, "host", 0.5) for step in range(1, 4 * WINDOW + 1)])
    summary = compared(ranks[0], 4 * WINDOW - 1)
    (told,) = [one.getMessage() for one in caplog.records if "was slow" in one.getMessage()]
    assert re.search(r"rank 1 .* 39 steps .* step 40: .* 13% .*host 100%", told)
    assert summary.stragglers.seconds_by_cause["host"] == pytest.approx(0.5 * (4 * WINDOW - 1), rel=0.01)


def test_a_slow_rank_is_in_the_journal_once_per_window_with_its_last_step(tmp_path, job):
    ranks = job()
    train(ranks, 3 * WINDOW, [(step, 1, "host", 0.5) for step in range(1, 3 * WINDOW + 1)])
    compared(ranks[0], 3 * WINDOW - 1)
    for rank in ranks:
        rank.recorder.close()
    assert [(one.step, one.rank) for one in records(tmp_path, Straggler)] == [(20, 1), (40, 1), (60, 1)]


def test_the_last_window_is_compared_if_the_fit_ends_with_it(job, monkeypatch):
    monkeypatch.setattr(stragglers, "LAST_SECONDS", 60.0)  # rank 0's patience, on a busy machine
    ranks = job()
    train(ranks, 2 * WINDOW, [(2 * WINDOW - 3, 1, "data", 2.0)])
    for rank in reversed(ranks):
        rank.recorder.close()
    assert ranks[0].recorder.summary.stragglers.seconds_by_cause == {"data": 2.0}


def test_all_changes_are_undone_before_rank_0_waits_for_the_others(job, monkeypatch):
    """Else it keeps the collector, while the fit has visibly ended, and the watchdog takes it for an abandoned one."""
    ranks = job()
    train(ranks, WINDOW)  # rank 1's part of the window is not there yet
    recorder, weight, seen = ranks[0].recorder, ranks[0].model.weight, []
    recorder.patches._undo.insert(0, lambda: seen.append("put back"))  # the last of all to be undone
    monkeypatch.setattr(stragglers, "sleep", lambda _: seen.append(len(_hooks(weight))))
    recorder.close()
    assert seen[0] == "put back"
    assert not any(seen[1:])


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_error_while_rank_0_waits_costs_neither_steps_nor_summary(tmp_path, job, error):
    ranks = job()
    train(ranks, WINDOW)
    recorder = ranks[0].recorder

    class Failing(Observer):
        def before_summary(self):
            raise error

    recorder.observe(Failing())
    with nullcontext() if error is ValueError else pytest.raises(error):
        recorder.close()
    assert recorder.summary.steps == WINDOW
    assert records(tmp_path, Steps)
    assert len(records(tmp_path, Summary)) == 1


def test_a_fit_of_rank_0_that_was_left_open_is_freed(job):
    held = weakref.ref(job().pop(0).recorder)
    until(lambda: gc.collect() is None or held() is None)


def test_ranks_whose_waits_are_not_seen_are_not_comparable(job):
    ranks = job(timed=False)
    train(ranks, WINDOW, [(8, 1, "data", 2.0), (13, 0, "gc", 3.0)])
    until(lambda: ranks[0].recorder.ranks.latest is not None)
    found = ranks[0].recorder.summary.stragglers
    assert (found.steps, found.costliest, found.comparable, found.backward_waiting) == (0, (), False, None)


def test_ranks_are_not_comparable_once_compiled_code_waits_for_others(job, monkeypatch):
    ranks = job()
    monkeypatch.setattr(stragglers, "in_compiled_code", lambda: True)
    train(ranks, WINDOW, [(8, 1, "data", 2.0)])
    until(lambda: ranks[0].recorder.ranks.latest is not None)
    found = ranks[0].recorder.summary.stragglers
    assert (found.steps, found.comparable) == (0, False)


@pytest.mark.parametrize("unlike", ["transfers", "model"])
def test_ranks_that_do_different_work_are_not_compared(job, monkeypatch, unlike):
    sizes = itertools.count(1)
    if unlike == "model":
        monkeypatch.setattr(gradient_moments, "size_of", lambda _: next(sizes))
    ranks = job()
    if unlike == "transfers":
        WAITS.transfers += 1
    train(ranks, WINDOW, [(8, 1, "data", 2.0)])
    until(lambda: ranks[0].recorder.summary.stragglers.other_work)
    found = ranks[0].recorder.summary.stragglers
    assert (found.steps, found.costliest, found.comparable, found.other_work) == (0, (), True, 2)
    train(ranks, 2 * WINDOW, [(WINDOW + 8, 1, "data", 2.0)])
    if unlike == "transfers":  # in the second window there were none
        assert compared(ranks[0], 1).stragglers.costliest == ((1, "data", 2.0, 1),)


def test_no_rank_has_a_hook_and_none_is_compared_with_stragglers_off(job, caplog):
    caplog.set_level(logging.INFO)
    ranks = job(stragglers="off")
    train(ranks, WINDOW, [(8, 1, "data", 9.0)])
    until(lambda: ranks[0].recorder.ranks.latest is not None)
    assert not any(hook for rank in ranks for one in rank.model.parameters() for hook in _hooks(one))
    assert ranks[0].recorder.summary.stragglers is None
    assert not caplog.records


def test_hooks_are_gone_after_the_fit_and_the_model_can_be_copied_before(job):
    ranks = job()
    weight = ranks[0].model.weight
    assert len(_hooks(weight)) == 1
    ranks[0].recorder.close()
    assert not _hooks(weight)


def test_an_error_in_the_analysis_is_told_once_and_ends_only_the_analysis(job, monkeypatch, caplog):
    ranks = job()
    monkeypatch.setattr("perf_callbacks.stragglers.peers.Peers.compare", lambda *_: 1 / 0)
    train(ranks, 2 * WINDOW)
    until(lambda: ranks[0].recorder.ranks.latest is not None and ranks[0].recorder.ranks.latest.last_step == 2 * WINDOW)

    def told():
        return [one for one in caplog.records if "the search for slow ranks has ended" in one.getMessage()]

    until(told)
    assert len(told()) == 1
    assert all(rank.recorder.active for rank in ranks)


@pytest.mark.parametrize("name", ["gradient_moments.last_parameter", "coordinates"])
def test_a_model_that_cannot_be_looked_at_ends_only_the_search(job, monkeypatch, caplog, name):
    monkeypatch.setattr(f"perf_callbacks.stragglers.observer.{name}", lambda _: 1 / 0)
    ranks = job()
    assert [one.getMessage().split(",")[0] for one in caplog.records] == [NO_MORE] * 2
    train(ranks, WINDOW)
    until(lambda: ranks[0].recorder.ranks.latest is not None)
    assert ranks[0].recorder.summary.included_steps == WINDOW - 1
    assert ranks[0].recorder.summary.stragglers is None


def test_an_error_in_the_signals_of_a_rank_is_told_once_and_ends_them(job, monkeypatch, caplog):
    monkeypatch.setattr("perf_callbacks.stragglers.signals.of_local_times", lambda *_: 1 / 0)
    ranks = job()
    train(ranks, 2 * WINDOW)
    until(lambda: ranks[0].recorder.ranks.latest is not None and ranks[0].recorder.ranks.latest.last_step == 2 * WINDOW)
    assert [one.getMessage().split(",")[0] for one in caplog.records] == [NO_MORE] * 2
    assert ranks[0].recorder.summary.included_steps == 2 * WINDOW - 1


def test_an_error_in_reading_local_times_ends_the_signals_alone(job, monkeypatch, caplog):
    monkeypatch.setattr("perf_callbacks.stragglers.local_times.LocalTimes.marks_read", lambda *_: 1 / 0)
    ranks = job()
    train(ranks, WINDOW)
    until(lambda: ranks[0].recorder.ranks.latest is not None)
    assert [one.getMessage().split(",")[0] for one in caplog.records] == [NO_MORE] * 2
    assert ranks[0].recorder.summary.included_steps == WINDOW - 1


def test_a_file_of_the_scheduler_that_was_closed_harms_no_backward(job, monkeypatch):
    monkeypatch.setattr(gradient_moments.os, "pread", lambda *_: 1 / 0)
    ranks = job()
    train(ranks, WINDOW, [(8, 1, "data", 2.0)])
    assert compared(ranks[0], WINDOW - 2).stragglers.costliest[0][:2] == (1, "data")


def test_time_without_a_cpu_is_read_in_each_long_step_and_rarely_in_short(monkeypatch):
    lines = iter([b"0 1 0", b"0 2 0", b"0 3 0", b"0 4 0"])
    monkeypatch.setattr(gradient_moments.os, "pread", lambda *_: next(lines))
    monkeypatch.setattr(gradient_moments, "_schedstat", lambda: os.open(os.devnull, os.O_RDONLY))
    clock, weight = FakeClock(), nn.Parameter(torch.ones(()))
    moments = gradient_moments.GradientMoments(weight, clock)
    for seconds in (0.001, 0.001, 0.0025, 0.001, 0.02, 0.02):
        clock.sleep(seconds)
        (2 * weight).backward()
    moments.close()
    assert [moment.line[2:3] for moment in moments.noted] == [b"1", b"1", b"2", b"2", b"3", b"4"]


@pytest.mark.parametrize("cause", ["data", "gc", "host"])
def test_slow_steps_of_a_single_process_are_explained(tmp_path, cause):
    rank = Rank(tmp_path, 0, world_size=1)
    train([rank], 60, [(40, 0, cause, 4.0)])
    rank.recorder.close()
    assert records(tmp_path, Straggler) == [Straggler(step=40, rank=0, cause=cause, seconds_lost=4.0)]
    summary = rank.recorder.summary
    assert summary.stragglers.seconds_by_cause == {cause: 4.0}
    assert summary.stragglers.slowdown is None
    assert summary.stragglers.steps == 59


def test_a_single_process_compares_nothing_with_stragglers_off(tmp_path):
    rank = Rank(tmp_path, 0, world_size=1, stragglers="off")
    train([rank], 60, [(40, 0, "data", 4.0)])
    rank.recorder.close()
    assert records(tmp_path, Straggler) == []
    assert rank.recorder.summary.stragglers is None


def test_the_parameter_that_is_used_first_is_hooked():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model.scale = nn.Parameter(torch.ones(()))
    model[0].weight.requires_grad_(False)
    assert gradient_moments.last_parameter(model) is model[1].weight
    assert gradient_moments.last_parameter(nn.Flatten()) is None
    assert gradient_moments.last_parameter(None) is None
    assert gradient_moments.last_parameter(nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(2))) is None
    assert not gradient_moments.sharded(model)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # torch's own
def test_compiled_autograd_traces_the_hook_into_one_graph():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    moments = gradient_moments.GradientMoments(model[0].weight, time.perf_counter)
    with compiled_autograd._enable(torch.compile(backend="eager", fullgraph=True)):
        model(torch.ones(3, 2)).sum().backward()
    assert not moments.noted
    assert model[0].weight.grad is not None
    model(torch.ones(3, 2)).sum().backward()
    assert len(moments.noted) == 1
    moments.close()


def _hooks(parameter):
    return parameter._post_accumulate_grad_hooks or {}
