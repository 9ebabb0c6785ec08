"""A training that hangs in the midst, through every integration: the seconds are those of the test."""

import re
from contextlib import contextmanager

import pytest
import torch
from fake_watchdog import FakeWatchdog
from torch.utils.data import DataLoader
from trainings.accelerated import an_accelerator
from trainings.doors import DOORS

from perf_callbacks import PerfConfig
from perf_callbacks.accelerate import attach
from perf_callbacks.kernel.records.journal_file import read
from perf_callbacks.kernel.records.rank_records import Stall
from perf_callbacks.loop import measure
from perf_callbacks.stalls import observer as stalls

pytestmark = pytest.mark.usefixtures("accelerate_state")

EVALUATES = {
    "transformers": "evaluate",
    "loop": "an evaluation",
    "accelerate": "a metric",
    "lightning": "validation_step",
    "pytorch_lightning": "validation_step",
}
"""A place in the evaluation of each door."""


@pytest.fixture
def watches(monkeypatch):
    found = FakeWatchdog()
    monkeypatch.setattr(stalls, "WATCHDOG", found)
    return found


@pytest.fixture
def said(caplog):
    def lines():
        texts = [record.getMessage() for record in caplog.records if record.name == "perf_callbacks"]
        return [text.removeprefix("perf_callbacks: ") for text in texts if "a step" in text or "no step" in text]

    return lines


def recorded(directory):
    return [entry.record for entry in read(directory) if isinstance(entry.record, Stall)]


@contextmanager
def measured(directory, model, optimizer, loader):
    config = PerfConfig(output_dir=str(directory), stall_after="60")
    with measure(model=model, optimizer=optimizer, loader=loader, config=config) as perf:
        yield perf.loader


@contextmanager
def prepared(directory, model, optimizer, loader):
    accelerator = an_accelerator(directory)
    with attach(accelerator, PerfConfig(stall_after="60")):
        yield accelerator.prepare(model, optimizer, loader)[2]


@pytest.mark.parametrize("door", DOORS)
def test_a_stall_is_told_once_with_its_line_and_once_when_it_is_over(tmp_path, watches, said, door):
    def hang(step):
        watches.pass_seconds(1)
        if step == 5:
            watches.pass_seconds(200)

    done = DOORS[door](tmp_path, after_step=hang, stall_after="60").run()
    began, over = said()
    assert began.startswith("no step for 60 s. The training is in other code: fake_watchdog.py:")
    assert began.endswith("pass_seconds`.")
    assert re.fullmatch(r"training goes on after 20[01] s without a step\.", over)
    (stall,) = recorded(tmp_path)
    assert (stall.step, stall.rank, stall.stage) == (5, 0, "other")
    assert [frame.split()[-1] for frame in stall.stack[-2:]] == ["hang", "pass_seconds"]
    assert stall.stack[-2].startswith(f"{__file__}:")
    assert 0 < len(stall.stack) <= 20
    stalls = done.summary.stalls
    assert (stalls.count, stalls.seconds, stalls.under_way) == (1, pytest.approx(201, abs=1), False)
    assert stalls.where == began.partition(" s. ")[2]


@pytest.mark.parametrize("door", DOORS)
def test_evaluations_and_the_first_steps_have_ten_times_the_patience(tmp_path, watches, said, door):
    def slow(step):
        watches.pass_seconds(500 if step < 3 else 1)

    def look(*_args, **_options):
        watches.pass_seconds(150)

    often = {"evaluate": 4, "save": 4, "stall_after": "60"}
    done = DOORS[door](tmp_path, EVALUATES[door], look, after_step=slow, **often).run()
    assert said() == []
    assert recorded(tmp_path) == []
    assert done.summary.stalls.count == 0


def test_an_evaluation_that_hangs_is_told(tmp_path, watches, said):
    def look():
        watches.pass_seconds(700)

    options = {"evaluate": 4, "steps": 4, "stall_after": "60"}
    DOORS["loop"](tmp_path, EVALUATES["loop"], look, after_step=lambda _: watches.pass_seconds(1), **options).run()
    assert said()[0].startswith("no step for 600 s. The training is in an evaluation: ")
    assert recorded(tmp_path)[0].stage == "evaluation"


@pytest.mark.parametrize("door", DOORS)
def test_a_stall_may_last_until_the_end(tmp_path, watches, said, door):
    def fail(step):
        watches.pass_seconds(1)
        if step == 5:
            watches.pass_seconds(100)
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        DOORS[door](tmp_path, after_step=fail, stall_after="60").run()
    assert said()[1] == "training ended after 100 s without a step."


@pytest.mark.parametrize(("seconds", "told"), [(500, 0), (700, 2)])
@pytest.mark.parametrize("door", [measured, prepared])
def test_work_after_the_end_of_a_loader_has_ten_times_the_patience(  # noqa: PLR0917 fixtures
    tmp_path, watches, said, door, seconds, told
):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with door(tmp_path, model, optimizer, DataLoader(torch.ones(6, 4))) as batches:
        for batch in batches:
            watches.pass_seconds(1)
            model(batch).sum().backward()
            optimizer.step()
        watches.pass_seconds(seconds)
    assert len(said()) == told


def test_it_can_be_turned_off(tmp_path, watches, said):
    DOORS["loop"](tmp_path, after_step=lambda _: watches.pass_seconds(10**4), stall_after="off").run()
    assert watches.watched == []
    assert said() == []


def test_an_error_in_the_watch_ends_the_watch_alone(tmp_path, monkeypatch, said):
    def fail(_):
        raise ValueError("no")

    monkeypatch.setattr(stalls.stacks, "of_thread", fail)
    watches = FakeWatchdog()
    monkeypatch.setattr(stalls, "WATCHDOG", watches)

    def hang(step):
        if step == 5:
            watches.pass_seconds(2)
            with pytest.raises(ValueError, match="no"):  # the watchdog takes it
                watches.pass_seconds(100)

    done = DOORS["loop"](tmp_path, after_step=hang, stall_after="60").run()
    assert said() == []
    assert done.summary.failure is None


def test_a_prompt_of_a_debugger_is_no_stall(tmp_path, watches, said, monkeypatch):
    monkeypatch.setattr(stalls.stacks, "of_thread", lambda _: None)
    done = DOORS["loop"](tmp_path, after_step=lambda _: watches.pass_seconds(500), stall_after="60").run()
    assert said() == []
    assert done.summary.stalls.count == 0
