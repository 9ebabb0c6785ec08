"""The standing of a run to earlier runs, and its line."""

from dataclasses import replace

import pytest
from rows import each_row

from perf_callbacks.baseline.standing import against_runs, line
from perf_callbacks.report.run_figures import RunFigures


def a_run(seconds=0.1, *, data=0.003, torch="2.14", **changes):
    usual = {
        "run_id": "a",
        "parameters": 1000,
        "batch": 8,
        "device": "cpu",
        "steps": 100,
        "step_seconds": seconds,
        "stage_seconds": {"data_time": data, "forward_time": 0.05},
        "samples_per_second": 8 / seconds,
        "tokens_per_second": 800 / seconds,
        "no_cpu_share": 0.001,
        "others_share": 0.01,
        "idle_share": 0.5,
        "versions": {"torch": torch, "python": "3.11"},
    }
    return RunFigures(**usual | changes)


LAST = [a_run(0.1 * one) for one in (0.99, 1.0, 1.01, 1.0, 1.0)]


def test_a_slower_release_of_a_dependency_is_named_with_the_stage_that_grew():
    found = against_runs(a_run(0.132, data=0.011, torch="2.15"), LAST)
    assert found.slower
    assert found.versions == {"torch": ("2.14", "2.15")}
    said = line(found)
    assert said.startswith("perf_callbacks: 32.0 % slower than the last 5 undisturbed runs of this program (")
    assert said.endswith("): torch 2.14 -> 2.15, data 3.00 ms -> 11.0 ms.")


@pytest.mark.parametrize("seconds", [0.1, 0.103, 0.098, 0.104])
def test_usual_differences_between_runs_have_no_line(seconds):
    assert against_runs(a_run(seconds), LAST) is None


def test_a_change_within_the_interval_has_no_line():
    spread = [a_run(0.1 * one) for one in (0.8, 1.2, 1.0, 0.9, 1.1)]
    assert against_runs(a_run(0.132), spread) is None


@pytest.mark.parametrize("number", [0, 1])
def test_a_single_run_has_no_spread(number):
    assert against_runs(a_run(1.0), LAST[:number]) is None


@each_row(
    "changed",
    [
        {"parameters": 500},
        {"batch": 4},
        {"device": "cuda"},
        {"world_size": 2},
        {"devices": 2},
        {"samples_per_second": 1.0},
    ],
)
def test_runs_that_are_not_alike_are_no_baseline(changed):
    assert against_runs(a_run(0.2, **changed), LAST) is None


def test_a_busier_machine_may_explain_the_difference():
    busy = {"no_cpu_share": 0.4, "others_share": 0.7, "idle_share": 0.0}
    assert against_runs(a_run(0.15, **busy), LAST) is None
    assert against_runs(a_run(2.0, **busy), LAST) is not None


@pytest.mark.parametrize("value", [0.0, -1.0, 1e300, None])
def test_times_that_no_run_has_are_left_out(value):
    foreign = replace(LAST[0], step_seconds=value)
    assert against_runs(a_run(0.132), [foreign, *LAST]).runs == 5
    assert against_runs(foreign, LAST) is None


def test_names_of_a_foreign_line_have_no_control_characters():
    last = [replace(one, versions={"torch": "2.14\x1b[2J"}) for one in LAST]
    assert "torch 2.14?[2J -> 2.15" in line(against_runs(a_run(0.132, torch="2.15"), last))


def test_many_new_versions_are_counted_and_four_are_named():
    names = [f"package{number}" for number in range(7)]
    last = [replace(one, versions=dict.fromkeys(names, "1")) for one in LAST]
    found = against_runs(a_run(0.15, versions=dict.fromkeys(names, "2")), last)
    told = ", ".join(f"{name} 1 -> 2" for name in names[:4])
    assert f"{told}, 3 other packages" in line(found)
