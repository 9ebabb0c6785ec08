"""The time of a job in words, and as bars of a report."""

from dataclasses import replace
from pathlib import Path

from attempt_histories import a_journal, attempts_of
from journals import a_fit
from snapshots import matches

from perf_callbacks.goodput import job_time, text
from perf_callbacks.kernel.records.codec import Entry
from perf_callbacks.report.history import gather
from perf_callbacks.report.payload import payload

HOUR = 3600.0


def of(*journals):
    return job_time.from_attempts(attempts_of(*journals))


HOURS = {"data_time": (0.4 * HOUR,) * 20}
FIRST = a_journal(started=0.0, times=(1.0,) * 4, ended="ValueError")
FULL = of(a_journal(started=0.0, times=(1.0,) * 4, ended=True, unseen=16))
JOBS = {
    "GPU-hours": of(a_journal(started=0.0, times=(HOUR,) * 20, world_size=64, tensor_cores=True, steps=HOURS)),
    "downtime": of(a_journal(started=0.0, times=(1.0,) * 4), a_journal(started=10.0, first=3, times=(1.0,) * 2)),
    "nothing lost": of(a_journal(started=0.0, times=(1.0,) * 4)),
    "no time": of(a_journal(started=0.0)),
    "device-hours": of(a_journal(started=0.0, times=(HOUR,) * 3)),
    "a failure and a kill": of(
        FIRST,
        a_journal(started=10.0, first=3, times=(1.0,) * 2, attempt=2),
        a_journal(started=20.0, first=5, times=(1.0,) * 2, attempt=3, ended=True),
    ),
    "rolled back by choice and by a crash": of(
        a_journal(started=0.0, times=(1.0,) * 40, ended=True),
        a_journal(started=30.0, first=11, times=(1.0,) * 10, attempt=2),
        a_journal(started=60.0, first=16, times=(1.0,) * 10, attempt=3, world_size=2),
    ),
    "a full journal": replace(FULL, attempts=(replace(FULL.attempts[0], unseen_steps=1000),)),
}  # fmt: skip


def test_texts_are_as_their_snapshot():
    """`WRITE_SNAPSHOTS=1` writes it anew."""
    shown = ""
    for name, job in JOBS.items():
        rows = [" | ".join(row) for row in text.attempts(job)]
        ends = [f"the last: {text.end(job.attempts[-1], last=True)}"] if job.attempts else []
        shown += "\n".join([f"=== {name}", text.sentence(job), *rows, *ends, *text.notes(job), ""])
    assert matches(Path(__file__).with_name("texts.txt"), shown)
    assert FULL.attempts[0].unseen_steps == 16


def test_the_report_has_a_bar_for_each_attempt_of_a_resumed_run():
    assert payload(gather([a_fit()]))["goodput"] is None
    second = [Entry(entry.t, entry.record) for entry in a_fit(attempt=2, step=10, started_unix=100.0)]
    found = payload(gather([[*a_fit(), *second]]))
    bars = found["goodput"]
    assert [one["name"] for one in bars["attempts"]] == ["Attempt 1", "Attempt 2"]
    assert sum(part["share"] for part in bars["all"]["parts"]) > 0.999
    assert "10 rolled back" in bars["attempts"][0]["bar"]["title"]
    assert max(sum(part["share"] for part in one["bar"]["parts"]) for one in bars["attempts"]) > 0.999
    assert found["how"]["goodput"]["meaning"]
