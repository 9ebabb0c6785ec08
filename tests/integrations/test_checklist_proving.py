"""An item on trial through every door: done and left in turns, then kept or not, and training is as without it."""

import gc
import math

import pytest
import torch
from collector import automatic, count_freezes
from faults import ERRORS
from sampling import half_slow, sampled
from short_trainings import DOORS
from tiny import records

from perf_callbacks.kernel.engine import engine
from perf_callbacks.kernel.fit import proving, trial
from perf_callbacks.kernel.fit.proving import Proving
from perf_callbacks.kernel.fit.trial import Outcome, Trial
from perf_callbacks.kernel.records.fit_records import Checklist

LAST = 50
"""The last step of the trial: two steps, and 16 turns of 3 steps."""

DECIDED = 65
"""The journal takes 64 steps at once; a step later it holds what was found."""

STEPS = 70
BETTER = Outcome(saved=0.002, low=0.001, high=0.003, left=0.01, pairs=8)
NO_BETTER = Outcome(saved=0.002, low=-0.001, high=0.003, left=0.01, pairs=8)
DONE_TURN = 7
"""A step in the midst of a turn in which it is done."""

every_door = pytest.mark.parametrize("through", DOORS.values(), ids=DOORS)
pytestmark = pytest.mark.usefixtures("accelerate_state", "_short", "_nothing_frozen")


@pytest.fixture
def _short(monkeypatch):
    monkeypatch.setattr(engine, "FLUSH_SECONDS", math.inf)  # a verdict comes with a full block, not with the clock
    for name, value in {"SETTLE": 1, "LEAST": 0, "FEWEST": 8, "CUT_OFF": {8: 0}}.items():
        monkeypatch.setattr(trial, name, value)
    for module in (trial, proving):
        monkeypatch.setattr(module, "TURN", 3)
        monkeypatch.setattr(module, "PAIRS", 8)


@pytest.fixture
def _nothing_frozen(monkeypatch):
    count_freezes(monkeypatch)


def judge(monkeypatch, outcome):
    monkeypatch.setattr(Trial, "outcome", lambda _: outcome)


def rows(directory, item="gc", **which):
    return [row for row in records(directory, Checklist, **which) if row.item == item]


def off_after(step, *, since=0, kept=None):
    """Whether automatic collection is off after a step, by the turns alone and what was decided."""
    return kept if kept is not None and step >= DECIDED else Trial(since + 2).done_after(step)


class Watch:
    """How the collector is found after each step."""

    def __init__(self):
        self.off, self.frozen = {}, {}

    def __call__(self, step):
        self.off[step], self.frozen[step] = not automatic(), gc.get_freeze_count()


def as_turns_say(steps=STEPS, **how):
    return {step: off_after(step, **how) for step in range(1, steps + 1)}


@pytest.mark.parametrize(("through", "kept"), sampled(DOORS, {"kept": True, "not": False}))
def test_an_item_takes_turns_until_its_verdict_and_training_is_the_same(tmp_path, monkeypatch, through, kept):
    outcome = BETTER if kept else NO_BETTER
    judge(monkeypatch, outcome)
    watch = Watch()
    ran = through(tmp_path / "prove", watch, steps=STEPS, checklist="prove")
    assert watch.off == as_turns_say(kept=kept)
    assert not any(watch.frozen.values())  # which the first full collection does, if it is kept
    assert (automatic(), gc.get_freeze_count()) == (True, 0)
    first, last = rows(tmp_path / "prove")
    told = "on and off in turns of 3 steps until step 50, to measure what it saves"
    assert (first.status, first.why, first.saved_seconds) == ("on trial", told, None)
    assert last.status == ("applied" if kept else "skipped")
    assert last.saved_seconds == (outcome.low, outcome.saved, outcome.high)
    assert ran.summary.proofs == {"gc": last.why}
    assert ran.summary.failure is None
    without = through(tmp_path / "off", lambda _: None, steps=STEPS, checklist="off")
    assert len(ran.losses) == STEPS
    assert ran.losses == without.losses
    assert all(map(torch.equal, ran.weights, without.weights))


@pytest.mark.parametrize("through", [DOORS["loop"], DOORS["transformers"]], ids=["loop", "transformers"])
def test_what_steps_really_took_is_judged(tmp_path, through):
    through(tmp_path, lambda _: None, steps=STEPS, checklist="prove")
    first, last = rows(tmp_path)
    assert first.status == "on trial"
    assert last.status in {"applied", "skipped"}
    low, saved, high = last.saved_seconds
    assert low <= saved <= high
    assert (last.status == "applied") == (low > 0)


@every_door
def test_a_fit_that_ends_before_the_verdict_says_that_it_was_on_trial(tmp_path, through):
    summary = through(tmp_path, lambda _: None, steps=8, checklist="prove").summary
    (row,) = rows(tmp_path)
    assert row.status == "on trial"
    assert summary.proofs == {"gc": "on trial"}
    assert (automatic(), gc.get_freeze_count()) == (True, 0)


@pytest.mark.parametrize(("through", "error"), sampled(DOORS, ERRORS))
def test_however_it_ends_in_a_done_turn_all_is_as_it_was_found(tmp_path, through, error):
    def after_step(step):
        if step == DONE_TURN:
            assert not automatic()
            raise error

    with pytest.raises((type(error), SystemExit)):  # Lightning exits after an interrupt
        through(tmp_path, after_step, checklist="prove")
    assert (automatic(), gc.get_freeze_count()) == (True, 0)


@every_door
@pytest.mark.slow
def test_what_somebody_froze_stays_frozen(tmp_path, monkeypatch, through):
    judge(monkeypatch, BETTER)
    gc.freeze()
    found, watch = gc.get_freeze_count(), Watch()
    through(tmp_path, watch, steps=STEPS, checklist="prove")
    assert watch.off == as_turns_say(kept=True)
    assert 0.9 * found < min(watch.frozen.values()) <= max(watch.frozen.values()) <= found  # some of it was freed
    assert 0.9 * found < gc.get_freeze_count() <= found


SWITCHES = [{"checklist": "off"}, {"skip": "gc"}, {"gc": "observe"}, {"gc": "off"}, {"enabled": False}]


@pytest.mark.parametrize(("through", "config"), sampled(DOORS, SWITCHES))
def test_each_switch_leaves_the_collector_alone(tmp_path, through, config):
    watch = Watch()
    through(tmp_path, watch, steps=10, **{"checklist": "prove", **config})
    assert watch.off == dict.fromkeys(range(1, 11), False)


VARIABLES = {
    "PERF_CALLBACKS_CHECKLIST=on": range(2, 11),
    "PERF_CALLBACKS_CHECKLIST=off": (),
    "PERF_CALLBACKS=0": (),
}


@pytest.mark.parametrize(("through", "variable"), sampled(DOORS, [*VARIABLES]))
def test_the_environment_overrules_the_code(tmp_path, monkeypatch, through, variable):
    monkeypatch.setenv(*variable.split("="))
    watch = Watch()
    through(tmp_path, watch, steps=10, checklist="prove")
    assert watch.off == {step: step in VARIABLES[variable] for step in range(1, 11)}


@pytest.mark.parametrize(
    ("through", "other"), half_slow(sampled(DOORS, {name: DOORS[name] for name in ("loop", "transformers")}))
)
def test_a_trial_within_a_trial_leaves_the_outer_one_its_turns(tmp_path, through, other):
    outer, inner = Watch(), Watch()

    def after_step(step):
        outer(step)
        if step == DONE_TURN:
            other(tmp_path / "inner", inner, steps=16, checklist="prove")
            assert (automatic(), gc.get_freeze_count()) == (False, 0)

    through(tmp_path, after_step, steps=30, checklist="prove")
    assert inner.off == dict.fromkeys(range(1, 17), True)  # the outer one's doing: it is in a turn of its own
    assert outer.off == as_turns_say(30)
    assert (automatic(), gc.get_freeze_count()) == (True, 0)
    assert [row.status for row in rows(tmp_path / "inner")] == ["on trial", "skipped"]


@every_door
@pytest.mark.slow
@pytest.mark.parametrize("every", [4, 7])
def test_evaluations_and_checkpoints_in_the_midst_of_turns_change_no_turn(tmp_path, monkeypatch, through, every):
    judge(monkeypatch, BETTER)
    aside, watch = [], Watch()
    ran = through(
        tmp_path / "prove",
        watch,
        steps=STEPS,
        every=every,
        look=lambda: aside.append(automatic()),
        checklist="prove",
    )
    decided = next(step for step in range(LAST, STEPS) if step not in watch.off or watch.off[step])
    assert LAST < decided <= DECIDED
    assert watch.off == as_turns_say(kept=True) | dict.fromkeys(range(decided, STEPS + 1), True)
    assert set(aside) == {True}
    assert len(aside) >= STEPS // every
    assert [row.status for row in rows(tmp_path / "prove")] == ["on trial", "applied"]
    without = through(tmp_path / "off", lambda _: None, steps=STEPS, every=every, checklist="off")
    assert ran.losses == without.losses
    assert all(map(torch.equal, ran.weights, without.weights))


@every_door
@pytest.mark.filterwarnings("ignore:Checkpoint directory", "ignore:You're resuming from a checkpoint")
def test_who_resumes_in_the_midst_of_a_trial_begins_another_one(tmp_path, through):
    through(tmp_path, lambda _: None, steps=16, every=8, checklist="prove")
    assert [row.status for row in rows(tmp_path)] == ["on trial"]
    watch = Watch()
    through(tmp_path, watch, steps=40, every=8, resume=True, checklist="prove")
    assert watch.off == {step: off_after(step, since=16) for step in range(17, 41)}
    (row,) = rows(tmp_path)
    assert "until step 66" in row.why
    assert (automatic(), gc.get_freeze_count()) == (True, 0)


@pytest.mark.parametrize(("through", "place"), half_slow(sampled(DOORS, ["steps_measured", "step_ended", "agreed"])))
def test_what_breaks_in_a_trial_undoes_that_item_alone(tmp_path, monkeypatch, caplog, through, place):
    inner = getattr(Proving, place)

    def broken(self, *args):
        if (args[-1] if place != "steps_measured" else args[0][-1].number) >= DONE_TURN:
            raise RuntimeError("broken")
        return inner(self, *args)

    monkeypatch.setattr(Proving, place, broken)
    watch = Watch()
    ran = through(tmp_path, watch, steps=STEPS, checklist="prove")
    assert (automatic(), gc.get_freeze_count()) == (True, 0)
    assert not watch.off[STEPS]
    assert [(row.status, row.why) for row in rows(tmp_path)][1:] == [("failed", "RuntimeError: broken")]
    assert [one.getMessage() for one in caplog.records if one.name == "perf_callbacks"] == [
        "perf_callbacks: gc: failed: RuntimeError: broken."
    ]
    assert ran.summary.failure is None
    assert ran.summary.steps == STEPS
