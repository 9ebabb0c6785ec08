"""Counters that a checkpoint carries from attempt to attempt."""

import os
import sys
import types

import pytest
from fakes import Fit, a_run
from rows import each_row

from perf_callbacks.kernel.fit import chain
from perf_callbacks.kernel.process import processes


def test_a_fresh_start_counts_from_the_start_of_its_process():
    run = a_run(started_unix=1000.0, process_seconds=8.0)
    found = chain.before(None, 0, run)
    assert not found.resumed
    assert found.state(run, 2.0, 1.0) == {
        "started_unix": 1000.0, "first_unix": 992.0, "elapsed_seconds": 10.0, "productive_seconds": 1.0
    }  # fmt: skip
    assert found.ettr(2.0, 1.0) == 0.1


def test_a_resumed_run_goes_on_counting():
    first = a_run(started_unix=1000.0)
    saved = chain.before(None, 0, first).state(first, 60.0, 50.0) | {"step": 5}
    second = a_run(started_unix=1090.0, step=5)
    found = chain.before(saved, 5, second)
    assert found.ettr(10.0, 10.0) == 0.6  # 30 seconds were lost between the checkpoint and the second start
    again = chain.before(found.state(second, 10.0, 10.0) | {"step": 7}, 7, a_run(started_unix=1100.0, step=7))
    assert (again.first_unix, again.elapsed_seconds, again.productive_seconds) == (1000.0, 100.0, 60.0)


def test_a_clock_set_back_does_not_shorten_the_time():
    saved = {"first_unix": 1000.0, "elapsed_seconds": 500.0, "productive_seconds": 400.0, "step": 5}
    assert chain.before(saved, 5, a_run(started_unix=900.0)).elapsed_seconds == 500.0


WRONG = (None, "x", True, -1, float("nan"), float("inf"))
KNOWN = {"first_unix": 1.0, "elapsed_seconds": 5.0, "productive_seconds": 4.0, "step": 5}


@each_row(
    "carried",
    [{}, None, KNOWN | {"step": 4}, *[KNOWN | {name: value} for name in [*KNOWN][:3] for value in WRONG]],
)  # fmt: skip
def test_counters_without_sense_leave_the_time_unknown(carried):
    found = chain.before(carried, 5, a_run())
    assert found.resumed
    assert found.ettr(1.0, 1.0) is None
    assert {*found.state(a_run(), 1.0, 1.0).values()} == {0.0, None}


@pytest.fixture
def process(monkeypatch):
    """A process of which nothing has been told yet."""
    pid = -id(monkeypatch)
    monkeypatch.setattr(os, "getpid", lambda: pid)


def test_the_age_of_a_process_is_told_once(monkeypatch, process):
    monkeypatch.setattr(processes, "age", lambda: 12.0)
    assert [chain.process_seconds(), chain.process_seconds()] == [12.0, None]
    fork = os.getpid() - 1
    monkeypatch.setattr(os, "getpid", lambda: fork)
    assert chain.process_seconds() == 12.0


def test_the_age_of_a_notebook_says_nothing(monkeypatch, process):
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    assert chain.process_seconds() is None


def test_a_system_without_boots_has_no_time_since_boot(tmp_path):
    assert chain.uptime(tmp_path / "none") == {}
    (tmp_path / "boot_id").write_text("b1\n")
    assert {*chain.uptime(tmp_path / "boot_id")} <= {"boot_id", "uptime_seconds"}


def test_special_steps_count_as_mean_steps_and_stalls_do_not_count():
    fit = Fit()
    fit.step(forward=100.0)
    for _ in range(4):
        fit.step(forward=2.0)
    fit.engine.exclude("counted")
    fit.step(forward=10.0)
    fit.engine.exclude("evaluation")
    fit.step(forward=3.0)
    assert fit.engine.productive_seconds() == pytest.approx(2.0 + 4 * 2.0 + 2.0 + 3.0)
    fit.engine.account.stalled_seconds = 5.0
    assert fit.engine.productive_seconds() == pytest.approx(10.0)


def test_a_first_step_alone_counts_whole():
    fit = Fit()
    fit.step(forward=4.0)
    assert fit.engine.productive_seconds() == 4.0
