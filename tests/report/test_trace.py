"""Trace events of a fit."""

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from journals import PROFILE, a_fit, steps
from snapshots import matches

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


LOST = Steps(step=(21, 22, 23), step_time=(0.25, None, 0.25))
SLOW = [Entry(30.0, Straggler(step=5, rank=rank, cause="data", seconds_lost=1.5)) for rank in (1, 7)]
PROFILES = [Entry(20.0, PROFILE), Entry(21.0, replace(PROFILE, first_step=None))]
TRACES = {
    "a rank": ([a_fit(0)], None),
    "stragglers": ([[*a_fit(0, world_size=2), *SLOW], a_fit(1, world_size=2)], range(4, 7)),
    "two attempts": (
        [[*a_fit(0, summary=False), *a_fit(0, attempt=2, step=20, started_unix=60.0)]], range(20, 24),
    ),
    "a step without a time": (
        [[*a_fit(0, summary=False), Entry(90.0, LOST), Entry(91.0, steps(24, 30))]], range(20, 25),
    ),
    "profiles": ([[*a_fit(0), *PROFILES]], range(6, 9)),
    "profiles of other steps": ([[*a_fit(0), *PROFILES]], range(7, 9)),
    "a profile whose trace was not kept": ([[*a_fit(0), Entry(20.0, replace(PROFILE, trace=None))]], range(5, 7)),
}  # fmt: skip
"""By name: journals, and the steps that are shown."""


def test_traces_are_as_their_snapshot():
    """`WRITE_SNAPSHOTS=1` writes it anew. Stages are left out."""
    shown = ""
    for name, (journals, within) in TRACES.items():
        shown += f"=== {name}\n"
        for event in events(*journals, within=within):
            times = [f"{event[key]:.0f}" for key in ("ts", "dur") if key in event]
            if event["name"] not in {"data", "forward", "backward"}:
                facts = [f"{key}={value}" for key, value in event.get("args", {}).items()]
                shown += (
                    " ".join([event["ph"], str(event["pid"]), str(event["tid"]), event["name"], *times, *facts]) + "\n"
                )
    assert matches(Path(__file__).with_name("traces.txt"), shown)
