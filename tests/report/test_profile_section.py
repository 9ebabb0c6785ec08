"""The part of a report about profiled steps."""

import json
from dataclasses import replace

import pytest
from journals import PROFILE, a_fit
from rows import each_row

from perf_callbacks.kernel.records.codec import Entry
from perf_callbacks.report.history import gather
from perf_callbacks.report.page import render
from perf_callbacks.report.payload import payload
from perf_callbacks.report.profile_section import MOST_PROFILES


def content(*profiles, rank=0):
    return payload(gather([[*a_fit(rank), *[Entry(20.0, one) for one in profiles]]]))


def test_the_time_is_divided_into_busy_and_the_causes_of_idle_time():
    [found] = content(PROFILE)["profiles"]
    assert (found["title"], found["trace"]) == ("Rank 0, steps 5 to 6", "profile0-5.json.gz")
    assert found["text"].startswith("The device (NVIDIA H100 80GB HBM3) was busy for 50% of 2 steps, each 1.00 s.")
    assert "Collectives ran for 12% of the time, 8% without computation beside them." in found["text"]
    assert found["profile_time"]["text"] == (
        "2.00 s in all: computing 850 ms, 42.5%, exposed communication 150 ms, 7.5%, waiting for the DataLoader 600 ms,"
        " 30.0%, CPU had waited for the device 400 ms, 20.0%."
    )
    assert sum(part["share"] for part in found["profile_time"]["parts"]) == pytest.approx(1)
    assert [part["name"] for part in found["profile_classes"]["parts"]] == ["contraction", "communication", "copy"]


def test_the_tables_have_modules_operations_copies_and_waits():
    tables = content(PROFILE)["profiles"][0]["tables"]
    assert tables["profiled_modules"]["rows"] == [
        ("lm_head", "200 ms", "300 ms", "50.0%", "≥ 30.0%"),
        ("layers.*.mlp", "200 ms", "0", "20.0%", "≥ 25.0%"),
        ("(optimizer)", "—", "—", "20.0%", "—"),
        ("(the model itself)", "100 ms", "0", "10.0%", "—"),
    ]
    assert tables["operations"]["rows"] == [
        ("aten::mm", "8x64, 64x64", "contraction", "8", "750 ms", "75.0%", "600", "75.0%"),
        ("ncclDevKernel_AllReduce", "", "communication", "2", "150 ms", "15.0%", "—", "—"),
    ]
    assert tables["operations"]["note"].endswith("512 kernels. 800 FLOPs in all, by the shapes in the trace.")
    assert tables["copies"]["rows"] == [("aten::to", "host to device", "train.py(12): load", "2", "100 ms", "10.0%")]
    assert tables["waits"]["rows"] == [("train.py(40): log", "400 ms", "20.0%")]


def test_each_bar_and_table_is_explained():
    found = content(PROFILE)
    for name, table in found["profiles"][0]["tables"].items():
        headings = dict(found["how"][name]["columns"])
        assert [*headings] == [heading for heading, _ in table["columns"]]
        assert all(headings.values()), name
    how = found["how"]["profile_time"]
    assert dict(how["values"]) == {"rank 0, steps 5 to 6": "1.00 s busy of 2.00 s, 512 kernels or operations"}
    assert "profile_classes" in found["how"]


def test_a_cpu_without_products_and_modules_leaves_parts_out():
    classes = {f"class {place}": 0.1 for place in range(10)}
    plain = replace(
        PROFILE,
        timeline="cpu",
        operations=(PROFILE.operations[1],),
        flops=None,
        copies=(),
        sync_seconds={},
        class_seconds=classes,
        module_seconds=None,
        module_backward_seconds=None,
        exposed_communication_seconds=0.0,
        trace=None,
    )
    [found] = content(plain)["profiles"]
    assert {*found["tables"]} == {"operations"}
    assert found["tables"]["operations"]["rows"][0][-2:] == ("", "")
    assert found["profile_time"]["parts"][0]["name"] == "busy"
    assert [part["name"] for part in found["profile_classes"]["parts"]][-1] == "other classes"
    assert found["trace"] is None


def test_a_run_without_profiles_has_no_such_part():
    found = content()
    assert found["profiles"] is None
    assert not {*found["how"]} & {"profile_time", "operations"}
    assert "profile" not in found["marks"]["lanes"]


def test_the_last_profiles_are_shown():
    found = content(*[replace(PROFILE, first_step=place) for place in range(1, 10)])
    assert len(found["profiles"]) == MOST_PROFILES
    assert found["profiles"][-1]["title"] == "Rank 0, steps 9 to 10"


def test_profiled_steps_are_marked_among_the_events():
    found = content(PROFILE)["marks"]
    lane = found["lanes"].index("profile")
    assert [5, lane, "profile of rank 0, steps 5 to 6, trace profile0-5.json.gz"] in found["marks"]


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
