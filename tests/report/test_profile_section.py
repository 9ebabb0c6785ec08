"""The part of a report about profiled steps."""

import json
from dataclasses import replace

from journals import PROFILE, a_fit
from rows import each_row

from perf_callbacks.kernel.records.codec import Entry
from perf_callbacks.report.history import gather
from perf_callbacks.report.page import render
from perf_callbacks.report.payload import payload
from perf_callbacks.report.profile_section import MOST_PROFILES


def content(*profiles, rank=0):
    return payload(gather([[*a_fit(rank), *[Entry(20.0, one) for one in profiles]]]))


def test_each_bar_and_table_is_explained():
    found = content(PROFILE)
    for name, table in found["profiles"][0]["tables"].items():
        headings = dict(found["how"][name]["columns"])
        assert [*headings] == [heading for heading, _ in table["columns"]]
        assert all(headings.values()), name
    how = found["how"]["profile_time"]
    assert dict(how["values"]) == {"rank 0, steps 5 to 6": "1.00 s busy of 2.00 s, 512 kernels or operations"}
    assert "profile_classes" in found["how"]


def test_a_run_without_profiles_has_no_such_part():
    found = content()
    assert found["profiles"] is None
    assert not {*found["how"]} & {"profile_time", "operations"}
    assert "profile" not in found["marks"]["lanes"]


def test_the_last_profiles_are_shown():
    found = content(*[replace(PROFILE, first_step=place) for place in range(1, 10)])
    assert len(found["profiles"]) == MOST_PROFILES
    assert found["profiles"][-1]["title"] == "Rank 0, steps 9 to 10"


@each_row(
    "change",
    [
        {"span_seconds": -1.0},
        {"busy_seconds": 1e300},
        {"idle_seconds": {"data": -1.0}},
        {"flops": 1e300},
        {"span_seconds": 0.0, "busy_seconds": 0.0},
        {"module_seconds": {"lm_head": -1.0}},
    ],
)
def test_impossible_values_end_no_report(change):
    found = content(replace(PROFILE, **change))
    assert found["profiles"] is None or found["profiles"][0]["profile_time"] is None
    json.dumps(found, allow_nan=False)


def test_the_page_has_the_data():
    page = render(content(PROFILE))
    assert "What a step consists of" in page
    assert '"profile_time"' in page
