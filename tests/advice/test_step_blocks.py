"""Steps of a fit in blocks: the variation of shares, and steps that become longer."""

import pickle
import random

import pytest
from rows import each_row

from perf_callbacks.advice.step_blocks import CHUNK, FEWEST, MOST, STAGES, StepBlocks
from perf_callbacks.kernel.records.fit_records import Steps

PLACES = {stage: place for place, stage in enumerate(STAGES)}


def facts(*steps, excluded=(), **amounts):
    """The facts after steps with these seconds of data, whose forward takes a second."""
    blocks = StepBlocks()
    for start in range(0, len(steps), 50):
        data = steps[start : start + 50]
        blocks.record_written(
            Steps(
                step=tuple(range(start, start + len(data))),
                step_time=tuple([1.0 + seconds for seconds in data]),
                data_time=tuple(data),
                forward_time=(1.0,) * len(data),
                **{name: tuple(column[start : start + 50]) for name, column in amounts.items()},
                excluded=tuple(excluded[start : start + 50]),
            )
        )
    return blocks.facts()


def test_equal_steps_have_exact_shares_and_no_drift():
    found = facts(*[0.5] * 200)
    assert found["widths"] == pytest.approx(dict.fromkeys(STAGES, 0.0))
    assert found["drift"] is None


def test_a_few_steps_tell_nothing():
    assert facts(*[0.5] * (FEWEST * CHUNK - 1)) == {}


@pytest.mark.parametrize("number", [100, 300, 2000])
def test_the_interval_has_the_true_share_in_nine_of_ten_fits(number):
    drawn, held = random.Random(number), 0
    for _ in range(100):
        steps = [0.5 if drawn.random() < 0.3 else 0.1 for _ in range(number)]
        width = facts(*steps)["widths"]["data"]
        true, share = 0.22 / 1.22, sum(steps) / (number + sum(steps))
        held += abs(share - true) <= width * share
    assert held >= 90


def test_the_number_of_blocks_is_limited():
    blocks = StepBlocks()
    for _ in range(100):
        blocks.record_written(Steps(step=tuple(range(256)), step_time=(1.0,) * 256))
    assert len(pickle.dumps(blocks)) < 100 * MOST


@pytest.mark.parametrize("number", [200, 5000])
def test_steps_that_become_longer_are_a_drift_of_a_stage(number):
    found = facts(*[0.5 * place / number for place in range(number)])["drift"]
    assert found.stage == "data"
    assert found.last / found.first == pytest.approx(1.4375 / 1.0625, rel=0.05)
    assert found.share == pytest.approx(1 - 1.0625 / 1.25, abs=0.02)


@each_row(
    "steps",
    [
        [0.5 - 0.5 * place / 400 for place in range(400)],  # shorter and shorter
        [0.05 * place / 400 for place in range(400)],  # by too little
        [*[0.0] * 390, *[9.0] * 10],  # some at the end
        [0.5 * (place % 7 == 0) for place in range(400)],
        [0.0] * 100 + [0.5] * 300,  # a fast beginning
        [0.0] * 200 + [0.5] * 200,  # from a moment on
    ],
)
def test_other_changes_are_no_drift(steps):
    assert facts(*steps)["drift"] is None


@pytest.mark.parametrize("amount", ["tokens", "samples", "model_flops"])
def test_larger_batches_are_no_drift(amount):
    steps = [0.5 * place / 400 for place in range(400)]
    assert facts(*steps, **{amount: [100 + place // 40 for place in range(400)]})["drift"] is None
    assert facts(*steps, **{amount: [100] * 400})["drift"]


def test_excluded_steps_do_not_count():
    steps = [9.0 if place % 10 == 0 else 0.5 for place in range(400)]
    reasons = ["evaluation" if place % 10 == 0 else None for place in range(400)]
    assert facts(*steps, excluded=reasons)["widths"]["data"] == pytest.approx(0.0)
