"""Trace events of a fit."""

import json
from collections import defaultdict
from dataclasses import replace

import pytest
from journals import PROFILE, a_fit, steps

from perf_callbacks.kernel.records.codec import Entry
from perf_callbacks.kernel.records.fit_records import Steps
from perf_callbacks.kernel.records.rank_records import Straggler
from perf_callbacks.report.history import gather
from perf_callbacks.report.trace import trace


def events(*journals, within=None):
    [fit] = gather(journals)
    found = json.loads("".join(trace(fit, within)))
    assert found["displayTimeUnit"] == "ms"
    return found["traceEvents"]


def two_ranks():
    later = [Entry(entry.t, entry.record) for entry in a_fit(1, world_size=2, started_unix=700.0)]
    return [a_fit(0, world_size=2), later]


def test_each_event_is_as_the_format_wants_it():
    for event in events(*two_ranks()):
        assert {"name", "ph", "pid", "tid"} <= {*event}
        assert event["ph"] in {"M", "X", "i"}
        assert event["pid"] in {0, 1}
        if event["ph"] == "M":
            assert event["name"] in {"process_name", "process_sort_index", "thread_name"}
        elif event["ph"] == "X":
            assert event["dur"] >= 0
            assert event["ts"] >= 0
        else:
            assert event["s"] == "p"


def test_the_slices_of_a_step_lie_in_it_and_add_up_to_it():
    by_step, inside = {}, defaultdict(list)
    current = None
    for event in events(a_fit(0)):
        if event["ph"] != "X" or event["tid"] != 1:
            continue
        if event["name"] == "step":
            current = event["args"]["step"]
            by_step[current] = event
        else:
            inside[current].append(event)
    assert [*by_step] == [*range(1, 21)]
    for step, whole in by_step.items():
        parts = inside[step]
        assert [part["name"] for part in parts] == ["data", "forward", "backward"]
        assert sum(part["dur"] for part in parts) == pytest.approx(whole["dur"])
        edges = [whole["ts"], *[part["ts"] + part["dur"] for part in parts]]
        assert [part["ts"] for part in parts] == pytest.approx(edges[:-1])
        assert edges[-1] == pytest.approx(whole["ts"] + whole["dur"])


def test_ranks_are_aligned_at_the_ends_of_their_steps():
    ends = defaultdict(dict)
    for event in events(*two_ranks()):
        if event["name"] == "step":
            ends[event["args"]["step"]][event["pid"]] = event["ts"] + event["dur"]
    apart = sorted(abs(by_rank[0] - by_rank[1]) for by_rank in ends.values())
    assert apart[:11] == [0.0] * 11  # the other rank's steps are later by the one that was slow on it alone
    assert apart[-1] == pytest.approx(937_500)


def test_what_happened_beside_the_steps_is_there():
    found = events(a_fit(0))
    [evaluation] = [event for event in found if event["name"] == "evaluation"]
    assert (evaluation["ts"], evaluation["dur"], evaluation["tid"]) == (2_500_000, 2_000_000, 2)
    [counted, pause, stall] = [event for event in found if event["ph"] == "i"]
    assert (counted["name"], counted["ts"]) == ("FLOP count", 500_000)
    assert (pause["name"], pause["ts"]) == ("collection", 1_000_000)
    assert pause["args"] == {"step": 4, "what": "garbage collection 125 ms, generation 2, rank 0, automatic"}
    assert (stall["name"], stall["args"]["what"]) == ("stall", "rank 0 in data for 61.0 s")
    [eleventh] = [event for event in found if event.get("args", {}).get("step") == 11 and event["name"] == "step"]
    assert eleventh["ts"] + eleventh["dur"] == pytest.approx(4_750_000)


def test_a_straggler_is_marked_at_the_end_of_its_step_on_its_rank():
    slow = [Straggler(step=5, rank=rank, cause="data", seconds_lost=1.5) for rank in (1, 7)]
    journal = [*a_fit(0, world_size=2), *[Entry(30.0, one) for one in slow]]
    found = [event for event in events(journal, a_fit(1, world_size=2)) if event["name"] == "straggler"]
    assert [(event["pid"], event["ts"], event["args"]["what"]) for event in found] == [
        (1, 1_250_000, "rank 1 cost 1.50 s: waiting for data"),
        (0, 1_250_000, "rank 7 cost 1.50 s: waiting for data"),
    ]


def test_an_attempt_begins_where_the_one_before_has_ended():
    journal = [*a_fit(0, summary=False), *a_fit(0, attempt=2, step=20, started_unix=60.0)]
    begins = [event["ts"] for event in events(journal) if event["name"] == "step"]
    assert begins[20] == 60_000_000


def test_some_steps_alone_and_steps_without_a_time():
    lost = Steps(step=(21, 22, 23), step_time=(0.25, None, 0.25))
    journal = [*a_fit(0, summary=False), Entry(90.0, lost), Entry(91.0, steps(24, 30))]
    found = [event["args"]["step"] for event in events(journal, within=range(20, 25)) if event["name"] == "step"]
    assert found == [20, 21, 23, 24]


def test_profiled_steps_are_a_slice_that_names_the_kept_trace():
    records = [*a_fit(0), Entry(20.0, PROFILE), Entry(21.0, replace(PROFILE, first_step=None))]
    [found] = [event for event in events(records) if event["name"] == "profile"]
    assert (found["ph"], found["tid"], found["ts"], found["dur"]) == ("X", 2, 1_000_000, 500_000)
    assert (found["args"]["steps"], found["args"]["trace"]) == ("5 to 6", "profile0-5.json.gz")
    assert found["args"]["what"].startswith(
        "The device (NVIDIA H100 80GB HBM3) was busy for 50% of 2 steps, each 1.00 s."
    )
    assert [event["name"] for event in events(records, within=range(6, 9)) if event["name"] == "profile"]
    assert not [event for event in events(records, within=range(7, 9)) if event["name"] == "profile"]
    [found] = [
        one for one in events([*a_fit(0), Entry(20.0, replace(PROFILE, trace=None))]) if one["name"] == "profile"
    ]
    assert found["args"]["trace"] == "not kept"
