"""Copies to a device that seems to be there, on trial through every door that copies: waited for, or not, in turns."""

import math

import fake_accelerator
import pytest
import tiny
import torch
from accelerate import data_loader
from sampling import sampled
from short_trainings import DOORS
from tiny import records

from perf_callbacks import checklist
from perf_callbacks.kernel.engine import engine
from perf_callbacks.kernel.fit import proving, trial
from perf_callbacks.kernel.fit.proving import Proving
from perf_callbacks.kernel.fit.trial import Outcome, Trial
from perf_callbacks.kernel.records.fit_records import Checklist

DECIDED = 65
"""The journal takes 64 steps at once; a step later it holds what was found of the 50 steps of the trial."""

STEPS = 70
BETTER = Outcome(saved=0.002, low=0.001, high=0.003, left=0.01, pairs=8)
NO_BETTER = Outcome(saved=0.002, low=-0.001, high=0.003, left=0.01, pairs=8)
ALONE = {"checklist": "prove", "skip": "gc"}

COPYING = {name: DOORS[name] for name in ("transformers", "accelerate")}
every_door_that_copies = pytest.mark.parametrize("through", COPYING.values(), ids=COPYING)
every_other_door = pytest.mark.parametrize("through", [DOORS[name] for name in sorted({*DOORS} - {*COPYING})])
pytestmark = pytest.mark.usefixtures("accelerate_state", "_short")


@pytest.fixture
def _short(monkeypatch):
    monkeypatch.setattr(engine, "FLUSH_SECONDS", math.inf)  # a verdict comes with a full block, not with the clock
    monkeypatch.setattr(trial, "SETTLE", 1)
    monkeypatch.setattr(checklist, "SLOT", 0)
    for module in (trial, proving):
        monkeypatch.setattr(module, "TURN", 3)
        monkeypatch.setattr(module, "PAIRS", 8)


@pytest.fixture
def copies(monkeypatch):
    arguments = tiny.training_arguments

    def pinning_ones(*args, **options):
        ours = arguments(*args, **options)
        ours.dataloader_pin_memory = True  # on a CPU, transformers says False
        return ours

    monkeypatch.setattr(tiny, "training_arguments", pinning_ones)
    return fake_accelerator.install(monkeypatch)


class Watch:
    """How what was copied since the step before was copied: set by step."""

    def __init__(self, copies):
        self.copies, self.kinds = copies, {}

    def __call__(self, step):
        self.kinds[step] = {*self.copies}
        self.copies.clear()


def rows(directory):
    return [row for row in records(directory, Checklist) if row.item == "loaders"]


def as_turns_say(steps, kept=None, *, after=2, decided=DECIDED):
    """The copies of a step are made after the one before it."""
    return {
        step: {kept if kept is not None and step > decided else Trial(after).done_after(step - 1)}
        for step in range(1, steps + 1)
    }


@pytest.mark.parametrize(("through", "kept"), sampled(COPYING, {"kept": True, "not": False}))
def test_copies_go_on_in_done_turns_and_are_waited_for_in_left_ones(tmp_path, monkeypatch, copies, through, kept):
    outcome = BETTER if kept else NO_BETTER
    monkeypatch.setattr(Trial, "outcome", lambda _: outcome)
    watch = Watch(copies)
    ran = through(tmp_path / "prove", watch, steps=STEPS, **ALONE)
    assert watch.kinds == as_turns_say(STEPS, kept)
    first, last = rows(tmp_path / "prove")
    assert first.status == "on trial"
    assert (last.status, last.saved_seconds) == ("applied" if kept else "skipped", (outcome.low, 0.002, 0.003))
    assert ran.summary.proofs == {"loaders": last.why}
    without = through(tmp_path / "off", lambda _: None, steps=STEPS, checklist="off")
    assert ran.losses == without.losses
    assert all(map(torch.equal, ran.weights, without.weights))


@every_door_that_copies
@pytest.mark.parametrize("error", [RuntimeError("no more"), KeyboardInterrupt()], ids=repr)
def test_however_it_ends_in_a_done_turn_copies_are_as_found(tmp_path, copies, through, error):
    send = data_loader.send_to_device

    def after_step(step):
        if step == 7:
            assert data_loader.send_to_device is not send
            copies.clear()
            raise error

    with pytest.raises((type(error), SystemExit)):
        through(tmp_path / "prove", after_step, **ALONE)
    watch = Watch(copies)
    through(tmp_path / "off", watch, checklist="off")
    assert data_loader.send_to_device is send
    # where nobody pins, nothing that is pinned is copied
    assert set().union(*watch.kinds.values()) == ({False} if through is COPYING["transformers"] else set())


@pytest.mark.parametrize(("place", "through"), sampled(["steps_measured", "step_ended", "agreed"], COPYING))
def test_what_breaks_in_the_trial_of_copies_leaves_the_collector_its_turns(  # noqa: PLR0917 fixtures
    tmp_path, monkeypatch, copies, caplog, place, through
):
    inner = getattr(Proving, place)

    def broken(self, *args):
        if self.slug == "loaders":
            raise RuntimeError("broken")
        return inner(self, *args)

    monkeypatch.setattr(Proving, place, broken)
    watch = Watch(copies)
    through(tmp_path, watch, steps=STEPS, checklist="prove")
    assert watch.kinds[STEPS] <= {False}
    assert [(row.status, row.why) for row in rows(tmp_path)][1:] == [("failed", "RuntimeError: broken")]
    others = [row.status for row in records(tmp_path, Checklist) if row.item == "gc"]
    assert others[0] == "on trial"
    assert others[1:] in (["applied"], ["skipped"])
    assert caplog.text.count("broken") == 1


@every_door_that_copies
def test_one_item_is_tried_after_the_other(tmp_path, monkeypatch, copies, through):
    monkeypatch.setattr(checklist, "SLOT", 68)
    monkeypatch.setattr(Trial, "outcome", lambda _: BETTER)
    watch = Watch(copies)
    ran = through(tmp_path, watch, steps=132, checklist="prove")
    assert watch.kinds == as_turns_say(132, kept=True, after=70, decided=129)
    assert [(row.item, row.status) for row in records(tmp_path, Checklist)] == [
        ("gc", "on trial"),
        ("loaders", "on trial"),
        ("affinity", "not applicable"),
        ("gc", "applied"),
        ("loaders", "applied"),
    ]
    assert [*ran.summary.proofs] == ["gc", "loaders"]


@every_other_door
def test_a_trainer_that_does_not_wait_for_copies_tries_nothing(tmp_path, copies, through):
    ran = through(tmp_path, Watch(copies), **ALONE)
    assert [row.status for row in rows(tmp_path)] == ["applied"]
    assert ran.summary.proofs == {}
