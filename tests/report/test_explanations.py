"""How the page says that its figures were computed: the registry's texts with the values of the run."""

from dataclasses import replace

from fakes import a_run
from journals import COUNT, a_fit, a_summary, steps

from perf_callbacks.kernel.records.codec import Entry
from perf_callbacks.report.explanation import without_links
from perf_callbacks.report.figure_table import BY_FIGURE, FIGURES
from perf_callbacks.report.history import gather
from perf_callbacks.report.page import render
from perf_callbacks.report.payload import payload


def content(*journals, **options):
    return payload(gather(journals), **options)


def entries(*records):
    return [Entry(float(place), record) for place, record in enumerate(records)]


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
