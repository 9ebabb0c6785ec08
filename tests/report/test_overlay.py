"""A second run beside the run of a report."""

import json

import pytest
from fakes import a_run
from journals import Outline, a_fit, steps, write

from perf_callbacks.commands import main
from perf_callbacks.kernel.records.codec import Entry
from perf_callbacks.report.history import gather
from perf_callbacks.report.page import render
from perf_callbacks.report.payload import payload
from perf_callbacks.report.point_names import PointNames


def journal(*blocks, **run):
    return [Entry(float(place), record) for place, record in enumerate([a_run(**run), *blocks])]


def fit(*blocks, **run):
    return gather([journal(*blocks, **run)])[0]


def test_both_runs_share_the_steps_of_the_chart():
    found = payload([fit(steps(1, 20))], other=fit(steps(11, 30, seconds=0.5), run_id="b2"))
    assert found["steps"]["x"] == [*range(1, 31)]
    assert found["steps"]["mean"] == [0.25] * 20 + [None] * 10
    assert found["other"]["mean"] == [None] * 10 + [0.5] * 20
    assert found["steps"]["text"].startswith("Step time over 20 steps: 250 ms")
    assert dict(found["figures"][0]["how"]["values"])["steps"] == "20 steps, between step 1 and 20"
    assert found["other"]["text"] == "B: 500 ms on average over 20 steps."


def test_a_run_b_without_steps_or_with_impossible_values_leaves_the_page_whole():
    for other in (fit(run_id="b2"), fit(steps(1, 20, model_flops=(10**300,) * 20), run_id="b2", world_size=3)):
        found = payload([fit(steps(1, 20))], other=other)
        assert found["steps"]["mean"] == [0.25] * 20
        render(found)
    assert found["notes"][-1] == "Ranks of B without a journal: 1, 2. No figure of B includes them."


def test_a_name_in_run_b_is_never_an_element():
    evil = "</script><script>alert(1)</script>"
    plain = payload([fit(steps(1, 20))], other=fit(steps(1, 20), run_id="b2"))
    hostile = payload([fit(steps(1, 20))], other=fit(steps(1, 20), run_id=evil, host=evil, model=evil, device=evil))
    assert Outline(render(hostile)).tags == Outline(render(plain)).tags


def test_the_command_lays_two_runs_over_each_other(tmp_path, capsys):
    write(tmp_path / "a", a_fit(0))
    write(tmp_path / "b", a_fit(0, run_id="b2"))
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "a"), "--with", str(tmp_path / "b"), "-o", str(page)]) == 0
    assert json.loads(Outline(page.read_text(encoding="utf-8")).data)["other"]["run"] == "b2"
    capsys.readouterr()
    assert main(["report", str(tmp_path / "a"), "--with", str(tmp_path / "nowhere")]) == 2
    assert "nowhere: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ranks", "width", "band", "about"),
    [
        (1, 1, "", "Each point is one step."),
        (8, 1, "fastest to slowest rank", "Each point is one step: the mean of its ranks, and a band"),
        (1, 3, "shortest to longest step", "Each point is 3 steps: their mean"),
        (8, 3, "shortest to longest step", "Each point is 3 steps of all ranks: their mean"),
    ],
)
def test_a_band_is_named_by_its_span(ranks, width, band, about):
    names = PointNames(ranks, width)
    assert names.times["band"] == band
    assert bool(names.rates["band"]) == bool(band)
    assert names.about.startswith(about)


def test_a_single_rank_has_no_band_of_ranks():
    found = payload([fit(steps(1, 20))])
    assert found["steps"]["names"] == {"line": "step time", "band": "", "least": "", "most": ""}
    assert found["rate"]["names"]["band"] == ""
