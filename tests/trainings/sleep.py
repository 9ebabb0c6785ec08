"""A sleep of known length at a place, and the steps of the fit that sleeps."""

import pytest

from trainings.runs import steps

STAGES = ("data", "forward", "backward", "optimizer", "gc", "other")
SLOW = (3, 5)


class Sleep:
    """Sleep once in each of some steps, longer in later ones."""

    def __init__(self, sleep, steps=SLOW):
        self.sleep, self.steps, self.slept = sleep, steps, {}

    def __call__(self, *_args, **_kwargs):
        step = self.training.step
        if step in self.steps and step not in self.slept:
            self.slept[step] = 0.004 * step
            self.sleep(self.slept[step])


def fit(directory, training, place, sleep, **options):
    """The steps of a training that sleeps at a place. It neither evaluates nor saves unless options say so."""
    usual = training.EVERYWHERE | {"flops": "off", "evaluate": None, "save": None}
    sleep.training = training(directory, place, sleep, **usual | options)
    sleep.training.run()
    return {step["step"]: step for step in steps(directory)}


def assert_in_stage(stage, found, sleep):
    """Each sleep is in one stage of its step, to the microsecond, and in no other."""
    assert sleep.slept.keys() == {*SLOW}
    assert {number: step["excluded"] for number, step in found.items() if step["excluded"]} == {1: "first"}
    for name in (*STAGES, "step"):
        expected = {number: sleep.slept.get(number, 0) if name in {stage, "step"} else 0 for number in found}
        assert {number: step[f"{name}_time"] for number, step in found.items()} == pytest.approx(expected, abs=1e-6)
