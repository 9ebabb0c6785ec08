"""Fits on the simulated accelerator: exact stages where events work, and else no stages and the reason."""

import json
from types import SimpleNamespace

import pytest
from jobs import IMPORTS, run
from trainings.runs import unwrapped

STAGES = {"data_time": 0, "forward_time": 0.004, "backward_time": 0.008, "optimizer_time": 0.002, "other_time": 0}


@pytest.fixture
def fit(tmp_path):
    """A fit in a process of its own: the first record and the summary of its journal, and what it printed."""

    def fit(integration="loop", **variables):
        words, environ = (integration, tmp_path), {"CUDA_VISIBLE_DEVICES": "", **variables}
        status, output, errors = run("simulated_fit.py", *words, imports=IMPORTS["loop"], directory=tmp_path, **environ)
        assert status == 0, errors
        done = json.loads(output.splitlines()[-1], object_hook=lambda fields: SimpleNamespace(**fields))
        seconds, steps = vars(done.summary.stage_seconds), done.summary.included_steps
        stages = {name: total / steps for name, total in seconds.items()}
        return SimpleNamespace(run=done.run, summary=done.summary, stages=stages, printed=unwrapped(output))

    return fit


@pytest.mark.parametrize("integration", ["loop", "transformers", "accelerate", "lightning"])
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
        ("raising", "sim can't be timed: its events fail: RuntimeError: elapsed_time is not supported by these events"),
        pytest.param("hanging", "sim can't be timed: its events did not complete within 2 s", marks=pytest.mark.slow),
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
