"""Events as JSON: what a command reads, whatever a run is called and however it fails."""

import json
from dataclasses import replace
from pathlib import Path

from fakes import a_run
from journals import a_summary
from snapshots import matches

from perf_callbacks.kernel.records.fit_records import Finding
from perf_callbacks.notifications.event import MOST_BYTES, MOST_TEXT, Origin, line

RUN = replace(a_run(), program="/home/me/train.py", model="Llama", host="node7", job_id="4711")
ORIGIN = Origin(run=RUN, directory="/data/out")
DRIFT = Finding(cause="drift", share=0.2, low=0.1, evidence="Steps became 30% longer", remedy="looking for lists")


def parsed(event):
    text = line(event)
    assert text.endswith(b"\n")
    assert text.count(b"\n") == 1
    return json.loads(text)


NOWHERE = Origin(run=RUN, directory=None)
EVENTS = {
    "a stall": ORIGIN.event("stall", "no step for 92 s.", {"seconds": 92.0}, step=412, now=1.5),
    "drift": ORIGIN.drift(DRIFT, step=9, now=1.0),
    "an end": ORIGIN.end(a_summary(failure=None, findings=(DRIFT,)), now=1.0),
    "a failure": ORIGIN.end(a_summary(failure="RuntimeError: boom\nmore", findings=(DRIFT,)), now=1.0),
    "a process that ends without a word": ORIGIN.lost(step=7, now=1.0),
    "such a process without a directory": NOWHERE.lost(step=7, now=1.0),
}


def test_events_are_as_their_snapshot():
    """`WRITE_SNAPSHOTS=1` writes it anew."""
    shown = "".join([f"=== {name}\n{json.dumps(parsed(event), indent=1)}\n" for name, event in EVENTS.items()])
    assert matches(Path(__file__).with_name("events.txt"), shown)


def test_an_event_is_bounded_and_has_no_escape_codes():
    hostile = {
        "text": "\x1b[2J" + "x" * 10_000,
        "stack": ["\U0001f600" * 10_000] * 1_000,
        "ranks": range(10_000),
        "seconds": float("nan"),
        "share": float("inf"),
        "surrogate": "\ud800",
        "nested": {"list": ["y" * 10_000] * 100, "number": 10**30},
    }
    event = ORIGIN.event("stall", hostile["text"], hostile, step=1, now=1.0)
    text = line(event)
    assert len(text) <= MOST_BYTES
    found = json.loads(text)
    assert "\\x1b[2J" in found["text"]
    assert len(found["stall"]["text"]) <= MOST_TEXT
    assert found["stall"]["seconds"] is found["stall"]["share"] is None
    assert "stack" not in found["stall"]  # too large in all
