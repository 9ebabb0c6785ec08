"""Time that passes at a place in a training loop is in one stage of one step, to the microsecond."""

import time

import pytest
from sampling import half_slow
from trainings import lightning_kit, lightning_trainer
from trainings.doors import DOORS, INTEGRATIONS
from trainings.place import ASIDE
from trainings.runs import records
from trainings.sleep import SLOW, STAGES, Sleep, assert_in_stage, fit

from perf_callbacks.kernel.records.fit_records import Span

pytestmark = pytest.mark.usefixtures("accelerate_state")

USUAL = {"accelerate": {"load": False}}
"""A checkpoint that is loaded begins another fit."""


def cases(wanted):
    """Each place with a wanted stage, and the variants of its training. All variants but one, in turn, are slow."""
    for integration, training in INTEGRATIONS.items():
        for number, (name, place) in enumerate(training.PLACES.items()):
            variants = [USUAL.get(integration, {})]
            if integration == "lightning":
                variants = lightning_variants(name, [*lightning_kit.FRAMEWORKS][number % 2])
            for turn, options in enumerate(variants) if place.stage in wanted else ():
                told = [integration, name, *[option for option in options.values() if isinstance(option, str)]]
                marks = [pytest.mark.slow] * (turn != number // 2 % len(variants))
                yield pytest.param(training, name, place.stage, options, id="-".join(told), marks=marks)


def lightning_variants(place, of):
    """Each kind of module whose loop has the place; orders of callbacks where the place is a hook."""
    if place == "on_save_checkpoint":
        return [{"saver": "ModelCheckpoint"}]
    if place == "on_save_checkpoint of the module":
        return [{"saver": "ModelCheckpoint"}, {"order": "before ours"}, {"order": "after ours"}]
    if place in lightning_trainer.ASIDES:
        return [{}]
    kinds = [{"of": of, "kind": kind} for kind, places in lightning_trainer.KINDS.items() if place in places]
    later = [kind | {"order": "after ours"} for kind in kinds if kind["kind"] != "Manual"]
    return kinds + later * (place in lightning_trainer.HOOKS)


@pytest.mark.parametrize(("training", "place", "stage", "options"), [*cases(STAGES)])
def test_time_at_a_place_is_in_its_stage_alone(tmp_path, clock, training, place, stage, options):  # noqa: PLR0917 cases
    sleep = Sleep(clock.sleep)
    assert_in_stage(stage, fit(tmp_path, training, place, sleep, steps=7, **options), sleep)


@pytest.mark.parametrize(("training", "place", "kind", "options"), half_slow([*cases(ASIDE)]))
def test_time_in_an_evaluation_or_checkpoint_is_in_no_step(  # noqa: PLR0917 cases
    tmp_path, clock, training, place, kind, options
):
    sleep = Sleep(clock.sleep, range(3, 11))
    asked = "for another callback" in place
    often = {"evaluate": 2 if kind == "evaluation" and not asked else None, "save": 2 if kind == "checkpoint" else None}
    found = fit(tmp_path, training, place, sleep, steps=8, **often, **options)
    assert sleep.slept.keys() == {3, 5, 7, 9}
    assert {number: step["excluded"] for number, step in found.items() if number > 1} == {
        number: kind if number in sleep.slept else None for number in range(2, 9)
    }
    assert {step["step_time"] for step in found.values()} == {0.0}
    spans = {span.step + 1: span.seconds for span in records(tmp_path, Span) if span.kind == kind and span.seconds}
    assert spans == pytest.approx(sleep.slept)


@pytest.mark.parametrize("place", ["a metric", "a checkpoint"])
def test_a_checkpoint_after_an_evaluation_has_its_own_span(tmp_path, clock, place):
    sleep, training = Sleep(clock.sleep, range(3, 9)), DOORS["accelerate"]
    fit(tmp_path, training, place, sleep, evaluate=True, save=True, load=False)
    assert [(span.kind, span.step, span.seconds) for span in records(tmp_path, Span)] == [
        (kind, step, pytest.approx(sleep.slept[step + 1] if kind == training.PLACES[place].stage else 0.0))
        for step in (2, 4, 6)
        for kind in ASIDE
    ]


@pytest.mark.parametrize("place", ["the model", "a layer", "the optimizer"])
@pytest.mark.parametrize("integration", INTEGRATIONS)
def test_stages_sum_to_the_step_on_the_real_clock(tmp_path, integration, place):
    training, sleep = INTEGRATIONS[integration], Sleep(time.sleep)
    place = place if place in training.PLACES else "a gradient"
    found = fit(tmp_path, training, place, sleep, steps=7, **USUAL.get(integration, {}))
    stage = training.PLACES[place].stage
    assert sleep.slept.keys() == {*SLOW}
    assert all(found[number][f"{stage}_time"] > seconds - 1e-6 for number, seconds in sleep.slept.items())
    for step in found.values():
        assert sum(step[f"{name}_time"] for name in STAGES) == pytest.approx(step["step_time"], abs=1e-6)
