"""Fits on the simulated accelerator: exact stages where events work, and else no stages and the reason."""

import json
from types import SimpleNamespace

import pytest
from forked import run
from jobs import IMPORTS
from trainings.runs import records, unwrapped

from perf_callbacks.kernel.records.fit_records import Row, Steps

STAGES = {"data_time": 0, "forward_time": 0.004, "backward_time": 0.008, "optimizer_time": 0.002, "other_time": 0}
INTEGRATIONS = ("loop", "transformers", "accelerate", "lightning")


@pytest.fixture
def fit(tmp_path):
    """A fit in a process of its own: the first record and the summary of its journal, and what it printed."""

    def fit(integration="loop", **variables):
        words, environ = (integration, tmp_path), {"CUDA_VISIBLE_DEVICES": "", **variables}
        status, output, errors = run("simulated_fit.py", *words, imports=IMPORTS["loop"], directory=tmp_path, **environ)
        assert status == 0, errors
        found = json.loads(output.splitlines()[-1], object_hook=lambda fields: SimpleNamespace(**fields))
        return SimpleNamespace(
            run=found.run,
            summary=found.summary,
            stages={
                name: seconds / found.summary.included_steps
                for name, seconds in vars(found.summary.stage_seconds).items()
            }
            if found.summary.included_steps
            else {},
            metrics=dict(records(tmp_path, Row)[-1].metrics) if records(tmp_path, Row) else {},
            printed=unwrapped(output),
            said=errors,
            excluded=[
                reason for block in records(tmp_path, Steps) for reason in block.excluded or [None] * len(block.step)
            ],
        )

    return fit


@pytest.mark.parametrize("integration", INTEGRATIONS)
def test_stages_are_the_work_that_was_queued(fit, integration):
    """Each step ends with a wait for the device, which is no finding."""
    done = fit(integration, WAITS="1")
    assert (done.run.device, done.run.timeline, done.run.unstaged) == ("Simulated Accelerator", "device", None)
    assert done.stages == pytest.approx(STAGES, rel=1e-6, abs=1e-9)
    assert (done.summary.lost_steps, done.summary.failure, done.summary.findings) == (0, None, [])


def test_a_host_that_is_ahead_loses_no_step(fit):
    done = fit()
    assert done.stages == pytest.approx(STAGES, rel=1e-6, abs=1e-9)
    assert (done.summary.steps, done.summary.lost_steps, done.summary.findings) == (30, 0, [])


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ("none", "sim can't be timed: its events fail: RuntimeError: Backend doesn't support elapsedTime."),
        ("raising", "sim can't be timed: its events fail: RuntimeError: elapsed_time is not supported by these events"),
        pytest.param("hanging", "sim can't be timed: its events did not complete within 2 s", marks=pytest.mark.slow),
        ("nan", "sim can't be timed: two of its events in a row were nan ms apart"),
    ],
)
def test_without_usable_events_there_are_step_times_and_no_stages(fit, events, why):
    done = fit(SIMULATED_EVENTS=events)
    assert (done.run.timeline, done.run.unstaged) == ("host", why)
    assert f"step time and throughput on Simulated Accelerator (host clock), no stages: {why}" in done.printed
    assert "a measured step:" not in done.printed
    assert done.stages == {}
    assert (done.summary.findings, done.summary.lost_steps, done.summary.stragglers) == ([], 0, None)
    assert done.summary.included_steps > 20
    assert done.summary.included_seconds > 0


def test_events_that_fail_later_cost_the_later_steps(fit):
    done = fit(SIMULATED_EVENTS="failing", WAITS="1")
    assert done.said.count("perf_callbacks: the device gives no more times, so steps get lost: RuntimeError") == 1
    assert 0 < done.summary.included_steps < done.summary.steps == 30
    assert done.summary.lost_steps == done.excluded.count("lost") > 0
    assert done.stages == pytest.approx(STAGES, rel=1e-6, abs=1e-9)


def test_points_out_of_order_change_no_sum(fit):
    done = fit(SIMULATED_EVENTS="unordered", WAITS="1")
    assert sum(done.stages.values()) == pytest.approx(0.014, abs=0.001)
    assert done.summary.lost_steps == 0


def test_a_captured_graph_costs_its_step_and_the_next(fit):
    done = fit(SIMULATED_GRAPHS="1", WAITS="0", CAPTURE="10")
    assert (done.summary.steps, done.excluded.count("captured"), done.summary.failure) == (31, 2, None)
    assert done.excluded[10:13] == ["captured", "captured", None]
    assert done.stages == pytest.approx(STAGES, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("memory", ["plain", "nested", "raising"])
def test_statistics_of_the_allocator_are_shown_or_left_out(fit, memory):
    done = fit(SIMULATED_MEMORY=memory, STEPS="12")
    assert (done.summary.failure, done.summary.steps) == (None, 12)
    assert ("perf/memory_allocated_peak_gb" in done.metrics) == (memory != "raising")
