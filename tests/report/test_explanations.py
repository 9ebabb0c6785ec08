"""How the page says that its figures were computed: the registry's texts with the values of the run."""

from dataclasses import replace

import pytest
from fakes import a_run
from journals import COUNT, a_fit, a_summary, steps

from perf_callbacks.kernel.records.codec import Entry
from perf_callbacks.kernel.records.fit_records import Window
from perf_callbacks.kernel.records.metric_table import BY_NAME
from perf_callbacks.report.explanation import without_links
from perf_callbacks.report.figure_table import BY_FIGURE, FIGURES
from perf_callbacks.report.history import gather
from perf_callbacks.report.page import render
from perf_callbacks.report.payload import payload


def content(*journals, **options):
    return payload(gather(journals), **options)


def entries(*records):
    return [Entry(float(place), record) for place, record in enumerate(records)]


def tiles(*records):
    return {one["key"]: one for one in content(entries(*records))["figures"]}


def values(explanation):
    return dict(explanation["values"])


def test_each_figure_of_a_page_has_an_explanation():
    found = content(a_fit(0, world_size=2, tensor_cores=True), a_fit(1, world_size=2, started_unix=1.0))
    charts = {"steps", "rate", "stages", "marks", "account", "peak", "memory", "heat", "Load", "Memory"}
    assert {*found["how"]} == charts | {*found["tables"]}
    assert all(one["meaning"] and one["source"] for one in found["how"].values())
    for name, table in found["tables"].items():
        headings = dict(found["how"][name]["columns"])
        assert [*headings] == [heading for heading, _ in table["columns"]]
        assert all(headings.values()), name
    assert all(one["how"]["meaning"] == without_links(BY_FIGURE[one["key"]].meaning) for one in found["figures"])


def test_mfu_is_the_quotient_of_speed_and_peak():
    found = tiles(a_run(), COUNT, steps(1, 20), a_summary(flops_source="counted", peak_source="https://maker"))
    how = found["mfu"]["how"]
    assert how["equation"] == "≥ 40.0% = 1.60 kFLOPS / 4.00 kFLOPS bfloat16 dense"
    assert values(how) == {
        "model FLOPs": "8.00 k FLOPs in 20 steps of all ranks",
        "time of these steps": "5.00 s",
        "FLOPs of a step": "400 FLOPs, counted in step 2; in other steps by the shapes of their batches",
        "peak": "4.00 kFLOPS, bfloat16",
        "source of the peak": "table of peaks, dense: https://maker",
    }
    assert how["uncounted"] == "mine::product"
    assert found["tflops"]["how"]["equation"] == "≥ 1.60 kFLOPS = 8.00 k FLOPs / 5.00 s"
    assert how["left_out"] == BY_NAME["tflops"].left_out
    whole = content(entries(a_run(), COUNT, steps(1, 20), a_summary()))["how"]
    assert whole["rate"]["equation"] == "≥ 40.0% = 1.60 kFLOPS / 4.00 kFLOPS bfloat16 dense"
    assert whole["peak"]["equation"] == "HFU ≥ 50.0% = MFU ≥ 40.0% x 1.25"


@pytest.mark.parametrize(
    ("known", "source"),
    [
        ({"peak_source": "peak_tflops=bf16=4"}, "set as peak_tflops=bf16=4"),
        ({"peak_source": "measured on cpu", "peak_measured": True}, "measured on cpu"),
        ({}, "the last row that a logger got; no summary names the source"),
    ],
)
def test_the_source_of_the_peak_is_named(known, source):
    found = tiles(a_run(), COUNT, steps(1, 20), a_summary(**known))
    assert values(found["mfu"]["how"])["source of the peak"] == source
    assert found["mfu"]["how"]["equation"].endswith("measured" if known.get("peak_measured") else "dense")


def test_a_rank_that_drives_several_devices_shares_its_flops():
    found = tiles(a_run(devices=2), COUNT, steps(1, 20), a_summary())
    assert found["mfu"]["value"] == "≥ 20.0%"
    assert found["tflops"]["how"]["equation"] == "≥ 800 FLOPS = 8.00 k FLOPs / 5.00 s / 2 devices"
    chart = content(entries(a_run(devices=2), COUNT, steps(1, 20), a_summary()))["rate"]
    assert chart["mean"][0] == 0.2


def test_step_time_is_a_quotient_and_names_the_excluded_steps():
    excluded = ("first", "counted", "counted", *[None] * 17)
    how = tiles(a_run(), steps(1, 20, excluded=excluded))["step_time"]["how"]
    assert how["equation"] == "250 ms = 4.25 s / 17 steps"
    assert values(how)["excluded steps"] == "3: FLOP count 2, first step of an attempt 1"
    unknown = steps(1, 3, step_time=(0.5, None, 0.5), excluded=(None, None, None))
    assert values(tiles(a_run(), unknown)["step_time"]["how"])["excluded steps"] == "1: without a time 1"


def test_rates_say_if_windows_or_one_rank_gave_them():
    window = Window(
        first_step=1, last_step=10, steps=20, ranks=2, seconds=2.5, samples=100, tokens=None, useful_tokens=None
    )
    found = tiles(a_run(world_size=2), steps(1, 20), window, a_summary())
    assert found["samples_per_second"]["how"]["equation"] == "40.0 samples/s = 100 samples / 2.50 s"
    assert values(found["samples_per_second"]["how"])["windows"] == "1 of 1, with 20 steps of all ranks"
    assert found["tokens_per_second"]["note"] == "one rank"
    assert values(found["tokens_per_second"]["how"])["steps"] == "18 of rank 0, in its last attempt"


def test_a_share_that_could_be_saved_is_given_in_seconds():
    how = content(a_fit(0))["how"]["findings"]
    assert values(how)["wall time after startup"] == "7.25 s"
    assert values(how)["data"] == "25.0%: 1.81 s"
    assert "startup" in values(content(a_fit(0))["how"]["account"])


def test_each_figure_stands_once():
    assert len({figure.name for figure in FIGURES}) == len(FIGURES)


def test_hostile_values_in_an_explanation_are_cut():
    evil = "<b>" + "x" * 10_000
    summary = a_summary(flops_dtype=evil, peak_source=evil, wall_seconds={evil: 1e300, "steps": 1.0})
    count = replace(COUNT, source=evil, uncounted={evil: 1}, model_flops=10**40)
    found = content(entries(a_run(config={"stall_after": evil}), count, steps(1, 20), summary))
    texts = [text for one in found["how"].values() for _, text in one["values"]]
    assert max(map(len, texts)) <= 300
    assert evil not in render(found)
