"""The lines of the program that keep the training thread busy."""

import itertools
import os
import re
import sys
import threading

import pytest
import torch
from rows import each_row
from torch.utils.data import DataLoader, Dataset

from perf_callbacks import PerfConfig
from perf_callbacks.kernel import clock
from perf_callbacks.kernel.process import cpu_time
from perf_callbacks.kernel.process.switch_interval import SWITCH_INTERVAL
from perf_callbacks.kernel.process.watchdog import WATCHDOG
from perf_callbacks.loop import measure

STEPS = 8


def look():
    """Let the watchdog look once, while this thread waits for longer than it takes to hand a batch over."""
    thread = threading.Thread(target=WATCHDOG.tick)
    thread.start()
    thread.join()
    threading.Event().wait(0.003)


def spin():
    """Let the watchdog look once, while this thread runs Python without an operation."""
    done = []
    thread = threading.Thread(target=lambda: (WATCHDOG.tick(), done.append(None)))
    thread.start()
    while not done:
        pass
    thread.join()


def poll():
    """Let the watchdog look once, while this thread asks whether the look is over."""
    done = threading.Event()
    thread = threading.Thread(target=lambda: (WATCHDOG.tick(), done.set()))
    thread.start()
    while not done.is_set():
        clock.sleep(0.0001)
    thread.join()


def nothing():
    pass


class Sleeps:
    """Clock on which each sleep is late by the same time, because a busy machine may make any sleep late."""

    def __init__(self, late):
        self.now, self.late = 0.0, late

    def perf_counter(self):
        self.now += 1e-5  # for loops that wait for a later time
        return self.now

    def sleep(self, seconds):
        clock.sleep(seconds)
        self.now += seconds + self.late


class Model(torch.nn.Linear):
    def __init__(self, work):
        super().__init__(2, 1)
        self.work = work

    def forward(self, rows):
        self.work()
        return super().forward(rows)


class Rows(Dataset):
    def __init__(self, load):
        self.load = load

    def __len__(self):
        return 2 * STEPS

    def __getitem__(self, row):
        self.load()
        return torch.ones(2)


def train(*, load=nothing, model=nothing, loss=nothing, hook=nothing, clip=nothing, update=nothing, after_step=nothing):
    """Train a tiny model, with work in these places, and return the summary."""
    model = Model(model)
    model.weight.register_hook(lambda _: hook())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: update())
    loader = DataLoader(Rows(load), batch_size=2)
    config = PerfConfig(journal=False, flops="off", checklist="off")
    with measure(model=model, optimizer=optimizer, loader=loader, config=config) as perf:
        for batch in perf.loader:
            summed = model(batch).sum()
            loss()
            summed.backward()
            clip()
            optimizer.step()
            optimizer.zero_grad()
            after_step()
    return perf.summary


def evidence(summary, cause):
    return next((found.evidence for found in summary.findings if found.cause == cause), "")


@pytest.fixture(autouse=True)
def no_other_looks(monkeypatch):
    """Keep the watchdog's own thread from looking at a busy machine, and let looks follow each other soon."""
    monkeypatch.setattr("perf_callbacks.advice.busy_lines.SPREAD_SECONDS", 0.008)
    monkeypatch.setattr("perf_callbacks.kernel.process.watchdog.PERIOD_SECONDS", 3600.0)
    monkeypatch.setattr("perf_callbacks.kernel.process.cpu_time.read", lambda _: None)  # no lack of a CPU
    monkeypatch.setattr("perf_callbacks.advice.busy_lines.BusyLines.computes", lambda _: False)


LOOK = r"mostly at test_busy_lines\.py:\d+ `look`"


def test_a_function_that_is_called_after_each_step():
    assert re.search(LOOK, evidence(train(after_step=look), "host"))


def test_the_samples_of_a_slow_data_set():
    summary = train(load=look)
    assert re.search(LOOK, evidence(summary, "data"))
    assert "mostly" not in evidence(summary, "host")


def test_lines_before_the_first_batch_or_after_the_last_are_in_no_step():
    steps = []

    def in_the_last_step():
        steps.append(None)
        if len(steps) == STEPS:
            for _ in range(5):
                look()

    summary = train(after_step=in_the_last_step)
    assert len(steps) == STEPS
    assert "mostly" not in evidence(summary, "host")


@pytest.mark.parametrize("looks", [1, 2])
def test_a_few_looks_name_no_line(looks):
    left = [look] * looks

    def score():
        left.pop()() if left else threading.Event().wait(0.001)

    found = evidence(train(after_step=score), "host")
    assert found
    assert "mostly" not in found


def test_a_framework_that_is_busy_by_itself_is_no_line_of_the_program(monkeypatch):
    monkeypatch.setattr("perf_callbacks.kernel.process.stacks.FRAMEWORKS", ("threading.",))  # as if it were a trainer
    found = evidence(train(after_step=look), "host")
    assert found
    assert "mostly" not in found


def test_a_look_that_fails_ends_the_looks_alone(monkeypatch):
    monkeypatch.setattr("perf_callbacks.kernel.process.stacks.position", lambda _: 1 / 0)
    summary = train(after_step=look)
    assert summary.failure is None
    assert evidence(summary, "host")


PLACES = {"loss": "forward", "hook": "backward", "clip": "optimizer", "update": "optimizer"}


@each_row("work", [look, spin])
@each_row("place", PLACES)
def test_slow_code_of_the_program_within_a_stage(place, work):
    summary = train(**{place: work})
    said = rf"Python code in {PLACES[place]} took .* mostly at test_busy_lines\.py:\d+ `{work.__name__}`"
    assert re.match(said, evidence(summary, "host"))


@pytest.mark.parametrize("place", PLACES)
def test_a_loop_that_polls_for_another_rank_is_no_slow_code(place):
    assert "`poll`" not in evidence(train(**{place: poll}), "host")


@pytest.fixture
def sleeps(monkeypatch):
    made = Sleeps(0.0)
    for name in ("perf_counter", "sleep"):
        monkeypatch.setattr(f"perf_callbacks.advice.busy_lines.{name}", getattr(made, name))
    return made


def test_python_in_a_forward_is_slow_because_the_sampling_thread_wakes_up_late(sleeps):
    sleeps.late = sys.getswitchinterval()
    assert "`spin`" in evidence(train(model=spin), "host")


@pytest.mark.usefixtures("sleeps")
def test_a_wait_or_small_operations_in_a_forward_are_the_model():
    assert "`look`" not in evidence(train(model=look), "host")


def test_a_thread_that_computes_is_not_slow(monkeypatch):
    monkeypatch.setattr("perf_callbacks.advice.busy_lines.BusyLines.computes", lambda _: True)
    assert "`look`" not in evidence(train(loss=look), "host")


def test_a_thread_that_waits_for_a_cpu_is_not_slow(monkeypatch):
    monkeypatch.setattr("perf_callbacks.kernel.process.cpu_time.runnable", lambda _: True)
    assert "`look`" not in evidence(train(loss=look), "host")


def test_a_wake_up_is_not_late_because_the_other_thread_had_no_cpu(sleeps, monkeypatch):
    sleeps.late, queued = sys.getswitchinterval(), itertools.count()
    without_cpu = {threading.get_native_id(): lambda: cpu_time.CpuTime(1.0, next(queued))}
    monkeypatch.setattr(cpu_time, "read", lambda thread: without_cpu.get(thread, lambda: None)())
    assert "`spin`" not in evidence(train(model=spin), "host")


def test_a_wait_beside_a_read_of_a_value_is_named(monkeypatch):
    monkeypatch.setattr("perf_callbacks.advice.waits.reads_each_step", lambda _: True)
    monkeypatch.setattr("perf_callbacks.advice.host.reads_each_step", lambda _: True)
    said = evidence(train(after_step=look), "host")
    assert re.match(rf"Waits outside of forward, backward and optimizer took .* {LOOK}", said)
    assert "mostly" not in evidence(train(after_step=spin), "host")


def test_the_switch_interval_of_the_program_stays():
    usual = sys.getswitchinterval()
    train(loss=spin)
    assert sys.getswitchinterval() == usual


def test_a_forked_child_has_the_usual_switch_interval():
    usual = sys.getswitchinterval()
    with SWITCH_INTERVAL.soon():
        assert sys.getswitchinterval() < usual
        child = os.fork()
        if not child:
            os._exit(sys.getswitchinterval() != usual)
    assert os.waitpid(child, 0)[1] == 0
    assert sys.getswitchinterval() == usual


def test_a_switch_interval_that_the_program_sets_stays():
    usual = sys.getswitchinterval()
    try:
        with SWITCH_INTERVAL.soon():
            sys.setswitchinterval(0.002)
        assert sys.getswitchinterval() == pytest.approx(0.002)
    finally:
        sys.setswitchinterval(usual)
