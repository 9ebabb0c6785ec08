"""Rows of modules: their time in a profile, and MFU from the counted step."""

from dataclasses import replace

import pytest
from fakes import a_run
from journals import COUNT, PROFILE, a_summary, steps
from rows import each_row

from perf_callbacks.kernel.records.codec import Entry
from perf_callbacks.kernel.records.module_records import ModuleWork
from perf_callbacks.report import module_times
from perf_callbacks.report.history import gather


def rows(*records, profile=PROFILE):
    """Path and MFU of each row, with a peak of 4000 FLOPs per second."""
    [fit] = gather([[Entry(0.0, record) for record in (a_run(), *records)]])
    [attempt] = fit.last
    found = module_times.of_run(profile, attempt, module_times.peak(attempt, [attempt]))
    return {one.name: one.mfu for one in found}


def test_mfu_is_the_flops_of_the_profiled_steps_over_the_busy_time_and_the_peak():
    found = rows(COUNT, steps(1, 20), a_summary())
    assert found == {
        "layers.*.mlp": pytest.approx(2 * 100 / 0.2 / 4000),
        "lm_head": pytest.approx(2 * 300 / 0.5 / 4000),
        "(the model itself)": None,
        "(optimizer)": None,
    }


def test_steps_with_other_batches_scale_the_flops():
    same = rows(COUNT, steps(1, 20), a_summary())
    half = rows(COUNT, steps(1, 20, model_flops=(200,) * 20), a_summary())
    assert half["lm_head"] == pytest.approx(same["lm_head"] / 2)


def test_a_module_without_time_of_its_own_counts_for_its_parent():
    deeper = (
        ModuleWork(path="layers.*.mlp.up", forward_flops=200),
        ModuleWork(path="layers.*.norm", forward_flops=100),
        ModuleWork(path="(no module)", modules=0, forward_flops=100),
    )
    found = rows(replace(COUNT, modules=deeper), steps(1, 20), a_summary())
    assert found["layers.*.mlp"] == pytest.approx(2 * 200 / 0.2 / 4000)
    assert found["(the model itself)"] == pytest.approx(2 * 100 / 0.1 / 4000)
    assert found["lm_head"] is None


@each_row(
    "records",
    [
        (steps(1, 20), a_summary()),
        (COUNT, a_summary()),
        (COUNT, steps(1, 4), a_summary()),
        (COUNT, steps(1, 20, model_flops=(None,) * 20), a_summary()),
        (COUNT, steps(1, 20), a_summary(peak_flops_per_second=None)),
    ],
)
def test_without_an_input_mfu_is_unknown(records):
    assert {*rows(*records).values()} == {None}


def test_modules_without_a_line_of_their_own_make_mfu_a_lower_bound():
    count = replace(COUNT, lower_bound=False)
    others = replace(count, modules=(*COUNT.modules, ModuleWork(path="(others)", forward_flops=1)))
    for record, expected in ((count, "15.0%"), (others, "≥ 15.0%")):
        [fit] = gather([[Entry(0.0, one) for one in (a_run(), record, steps(1, 20), a_summary())]])
        found = module_times.of_run(PROFILE, fit.last[0], 8000.0)
        assert {cells[0]: cells[-1] for cells in module_times.table(found, PROFILE)}["lm_head"] == expected


def test_the_peak_of_another_rank_with_the_same_device_serves():
    ranks = [[Entry(0.0, a_run(rank=0)), Entry(1.0, a_summary())], [Entry(0.0, a_run(rank=1))]]
    ranks.append([Entry(0.0, a_run(rank=2, device="other"))])
    [fit] = gather(ranks)
    assert [module_times.peak(one, fit.last) for one in fit.last] == [4000.0, 4000.0, None]


def test_many_classes_of_a_trace_share_rows():
    times = {f"Model_0/Block_{place}": 0.01 for place in range(20)}
    [row] = module_times.of_trace(replace(PROFILE, module_seconds=times, module_backward_seconds=None))
    assert (row.name, row.seconds) == ("Model_*/Block_*", pytest.approx(0.2))
    few = module_times.of_trace(replace(PROFILE, module_seconds={"Model_0": 0.5}))
    assert [one.name for one in few] == ["Model_0"]
    assert module_times.table(few, PROFILE)[0] == ("module", "forward", "backward", "share")
    assert module_times.table([], PROFILE) == []
