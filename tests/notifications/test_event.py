"""Events as JSON: what a command reads, whatever a run is called and however it fails."""

import json
from dataclasses import replace

import pytest
from fakes import a_run
from journals import a_summary

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


def test_an_event_says_which_run_it_comes_from():
    event = parsed(ORIGIN.event("stall", "no step for 92 s.", {"seconds": 92.0}, step=412, now=1.5))
    assert event == {
        "schema": 1,
        "event": "stall",
        "time_unix": 1.5,
        "text": "train.py · Llama · on node7: no step for 92 s.",
        "title": "train.py · Llama · on node7",
        "run_id": RUN.run_id,
        "attempt": RUN.attempt,
        "job_id": "4711",
        "host": "node7",
        "program": "/home/me/train.py",
        "output_dir": "/data/out",
        "rank": 0,
        "world_size": 1,
        "step": 412,
        "stall": {"seconds": 92.0},
    }


@pytest.mark.parametrize(("failure", "state"), [(None, "ended"), ("RuntimeError: boom\nmore", "failed")])
def test_the_end_has_state_verdict_and_findings(failure, state):
    event = parsed(ORIGIN.end(a_summary(failure=failure, findings=(DRIFT,)), now=1.0))
    assert event["end"]["state"] == state
    assert event["end"]["verdict"].startswith("Steps became 30% longer; try looking for lists.")
    assert event["text"].endswith(event["end"]["verdict"])
    assert ("RuntimeError: boom." in event["text"]) is (state == "failed")
    assert "more" not in event["text"]
    assert event["end"]["findings"][0]["cause"] == "drift"


def test_a_process_that_ends_without_a_word_is_lost():
    event = parsed(ORIGIN.lost(step=7, now=1.0))
    assert (event["event"], event["step"], event["end"]["state"]) == ("end", 7, "lost")
    assert "`perf-callbacks show /data/out`" in event["text"]
    assert "show" not in parsed(Origin(run=RUN, directory=None).lost(step=7, now=1.0))["text"]


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
