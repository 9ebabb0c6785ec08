"""The page of a report: its content as plain values, and as HTML."""

import json
import re
from dataclasses import replace

import pytest
from fakes import a_run
from journals import COUNT, Outline, a_fit, a_summary, steps

from perf_callbacks.kernel.records.codec import Entry
from perf_callbacks.kernel.records.fit_records import Steps
from perf_callbacks.kernel.records.summary_parts import StallSummary
from perf_callbacks.report.history import gather
from perf_callbacks.report.page import render
from perf_callbacks.report.payload import payload


def content(*journals, **options):
    return payload(gather(journals), **options)


def two_ranks():
    device = {"world_size": 2, "timeline": "device", "tensor_cores": True}
    return [a_fit(0, **device), a_fit(1, **device, started_unix=1.0)]


def test_a_journal_can_put_no_element_into_the_page():
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    journal = [
        Entry(0.0, a_run(run_id=evil, device=evil, versions={evil: evil}, config={evil: evil})),
        Entry(1.0, replace(COUNT, uncounted={evil: 1}, products=((evil, evil, evil, 1),))),
        Entry(2.0, a_summary(findings=(), failure=evil, flops_unknown=evil)),
    ]
    plain, hostile = (Outline(render(content(one))) for one in (a_fit(0), journal))
    assert hostile.tags == plain.tags
    assert json.loads(hostile.data)["title"]["run"] == evil


def test_a_journal_can_turn_no_letters_round():
    page = render(content([Entry(0.0, a_run(host="node\u202e7\x1b[31m"))]))
    assert dict(json.loads(Outline(page).data)["title"]["facts"])["host"] == "node?7?[31m"


def test_the_page_asks_for_nothing_and_runs_its_own_scripts_alone():
    page = render(content(*two_ranks()))
    assert Outline(page).links == ["data:,"]
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)[1]
    assert policy.startswith("default-src 'none'; img-src data:; script-src 'sha256-")
    assert len(re.findall(r"'sha256-[^']{44}'", policy)) == 6
    assert "innerHTML" not in page.replace("uPlot", "")[page.index("function el(") :]
    assert "{{" not in page.split('id="data"')[0]


def test_columns_of_a_chart_have_the_same_length():
    found = content(*two_ranks())
    points = len(found["steps"]["x"])
    assert points == 20
    assert {len(found[chart][name]) for chart in ("steps", "rate") for name in ("least", "mean", "most")} == {points}
    assert {len(values) for values in found["stages"]["shares"]} == {points}


def test_of_many_ranks_the_furthest_from_the_others_are_tabulated():
    journals = [
        [
            Entry(0.0, a_run(rank=rank, world_size=60)),
            Entry(1.0, steps(1, 5, data_time=(0.5 if rank == 57 else 0.0625,) * 5)),
        ]
        for rank in range(60)
    ]
    found = content(*journals)["tables"]["ranks"]
    assert ([row[0] for row in found["rows"][:3]], len(found["rows"])) == (["57", "0", "1"], 50)
    assert found["note"] == "The ranks that exceed the median most outside of backward; 10 are not shown."


@pytest.mark.parametrize(("step", "ended"), [(12, False), (20, True)])
def test_a_run_that_went_on_or_ended_does_not_hang(step, ended):
    stalls = StallSummary(count=1, seconds=104.0, under_way=True, where="The training is in data")
    earlier = Entry(111.0, replace(a_summary(step=step), stalls=stalls))
    (fit,) = gather([a_fit(0, summary=ended)], [lambda run: earlier])
    assert fit.hang is None
    assert (fit.summary == a_summary()) is ended


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_few_steps_make_a_page(count):
    block = Steps(step=tuple(range(1, count + 1)), step_time=(0.5,) * count)
    found = content([Entry(0.0, a_run()), Entry(1.0, block)])
    assert found["verdict"] == (
        "500 ms per step. The stages of a step are unknown." if count else "No step was measured."
    )
    assert "perf_callbacks report" in render(found)
