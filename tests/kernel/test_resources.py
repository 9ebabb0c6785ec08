"""Use of the machines by a job: known as a whole where each rank knows its own, and in no other case."""

import math
from array import array
from dataclasses import replace

import pytest
from fakes import FakeRanks, Fit, a_run
from jobs.parts import PART, combine

from perf_callbacks.kernel.engine.resources import JOB_FIGURES, RESOURCES, by_rank, job_figures, packed
from perf_callbacks.kernel.records.fit_records import Window
from perf_callbacks.kernel.records.metric_table import KEYS

FULL = {"cpu_cores": 2.0, "resident_gb": 4.0, "gpu_utilization": 0.9, "gpu_memory_gb": 60.0, "power_watts": 500.0}
IDLE = {"cpu_cores": 1.0, "resident_gb": 8.0, "gpu_utilization": 0.1, "gpu_memory_gb": 70.0, "power_watts": 100.0}
HOST = {"cpu_cores": 1.0, "resident_gb": 8.0}


def of(*ranks):
    figures = array("f")
    for rank in ranks:
        figures.extend(packed(rank))
    return figures


def test_sums_means_and_extremes():
    assert job_figures(of(FULL, IDLE), complete=True) == {
        "job_cpu_cores": 3.0,
        "job_resident_gb": 12.0,
        "job_gpu_utilization": 0.5,
        "job_gpu_utilization_min": 0.1,
        "job_gpu_memory_max_gb": 70.0,
        "job_power_watts": 600.0,
    }


@pytest.mark.parametrize(
    ("ranks", "complete"), [((FULL, HOST), True), ((FULL, IDLE), False), ((), True), (({},), True)]
)
def test_a_figure_that_a_rank_does_not_know_is_unknown_of_the_job(ranks, complete):
    figures = job_figures(of(*ranks), complete=complete)
    assert figures == ({"job_cpu_cores": 3.0, "job_resident_gb": 12.0} if HOST in ranks else {})


def test_each_figure_is_a_metric():
    assert {*JOB_FIGURES} == {name for name in KEYS["row"] if name.startswith("job_")}
    assert {name for name, _ in JOB_FIGURES.values()} == {*RESOURCES}


@pytest.mark.parametrize("amount", [-1.0, math.nan, math.inf, 3e38])
def test_impossible_amounts_are_unknown(amount):
    assert packed({"cpu_cores": amount if amount != 3e38 else 1e300}) == packed({})
    sent = array("f", [1.0, *[amount] * 4])
    assert job_figures(sent, complete=True) == {"job_cpu_cores": 1.0}
    assert by_rank(sent, [0], 1) == {"cpu_cores": (1.0,)}


def test_each_rank_has_its_figures_if_others_are_missing():
    assert by_rank(of(FULL, HOST), [0, 2], 4)["cpu_cores"] == (2.0, None, 1.0, None)
    assert by_rank(of(FULL, HOST), [0, 2], 4)["power_watts"] == (500.0, None, None, None)
    assert by_rank(of(HOST), [0], 1).keys() == HOST.keys()
    assert by_rank(of({}, {}), [0, 1], 2) == {}


@pytest.mark.parametrize("size", [64, 65, 4096])
def test_a_large_job_has_figures_of_the_job_alone(size):
    parts = [replace(PART, rank=rank, world_size=size, data_parallel=size, resources=FULL) for rank in range(size)]
    window = combine(parts)
    assert window.job["job_cpu_cores"] == 2.0 * size
    assert window.job["job_gpu_utilization"] == pytest.approx(0.9, rel=1e-5)
    assert len(window.by_rank.get("cpu_cores", ())) == (size if size <= 64 else 0)


def a_window(**changes):
    given = {"first_step": 1, "last_step": 9, "steps": 9, "ranks": 2, "seconds": 1.0}
    return Window(**given, samples=None, tokens=None, useful_tokens=None, **changes)


def row(window, processes=2):
    """The use of the machines in a row after this window."""
    ranks = FakeRanks(window=9)
    ranks.latest = window
    fit = Fit(a_run(world_size=processes), ranks=ranks)
    for _ in range(2):
        fit.step(other=1)
    return {name: value for name, value in fit.engine.row(2).items() if "job" in name}


def test_a_row_has_the_figures_of_the_last_window_and_no_foreign_names():
    assert row(a_window(job={"job_cpu_cores": 3.0, "job_foreign": 1.0})) == {"perf/job_cpu_cores": 3.0}
    assert row(a_window(job={"job_cpu_cores": 3.0}), processes=1) == row(None) == {}
