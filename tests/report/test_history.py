"""Journals gathered into fits."""

from math import isnan

from fakes import a_run
from journals import a_fit, steps

from perf_callbacks.kernel.records.codec import Entry
from perf_callbacks.kernel.records.fit_records import Row, Steps
from perf_callbacks.report.history import gather


def entries(*records):
    return [Entry(float(place), record) for place, record in enumerate(records)]


def test_ranks_of_a_run_are_a_single_fit():
    [fit] = gather([a_fit(0, world_size=4), a_fit(2, world_size=4)])
    assert ([*fit.ranks], fit.missing, fit.world_size) == ([0, 2], [1, 3], 4)
    assert fit.summary is not None
    assert [*fit.first[0].step] == [*range(1, 21)]


def test_fits_in_a_file_stay_apart_in_the_order_of_their_start():
    later = entries(a_run(run_id="b", started_unix=9.0), steps(1, 3))
    earlier = entries(a_run(run_id="a", started_unix=3.0), steps(1, 2))
    assert [fit.run_id for fit in gather([later + earlier])] == ["a", "b"]


def test_steps_that_a_later_attempt_repeats_count_once():
    journal = entries(a_run(), steps(1, 10), a_run(attempt=2, step=6), steps(7, 12))
    [fit] = gather([journal])
    assert [end for _, end in fit.kept(0)] == [6, 6]


def test_a_journal_that_was_begun_again_is_a_single_attempt():
    [fit] = gather([entries(a_run(), steps(1, 2), a_run(), steps(3, 4))])
    assert [[*attempt.step] for attempt in fit.first] == [[1, 2, 3, 4]]


def test_a_file_cut_at_its_beginning_is_not_taken_for_the_rank_before():
    [fit] = gather([entries(a_run(), steps(1, 2)), entries(steps(3, 4))])
    assert [*fit.first[0].step] == [1, 2]


def test_steps_that_do_not_go_on_are_dropped_and_unknown_values_are_nan():
    backwards = Steps(step=(5, 3, 6, 2**90), step_time=(1.0, 2.0, None, 4.0), excluded=("first", "x", None, None))
    [fit] = gather([entries(a_run(), backwards, steps(6, 7))])
    attempt = fit.first[0]
    assert [*attempt.step] == [5, 6, 7]
    assert isnan(attempt.columns["step_time"][1])
    assert isnan(attempt.columns["data_time"][0])
    assert attempt.excluded == {5: "first"}


def test_the_peak_of_the_last_row_is_kept():
    rows = [Row(step=2, metrics={"perf/peak_tflops": 3.5}), Row(step=3, metrics={"perf/mfu": 0.5})]
    [fit] = gather([entries(a_run(), *rows)])
    assert fit.first[0].peak_tflops == 3.5
