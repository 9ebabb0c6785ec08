"""The time of a job in words, and as bars of a report."""

from dataclasses import replace

from attempt_histories import a_journal, attempts_of
from journals import a_fit

from perf_callbacks.goodput import job_time, text
from perf_callbacks.goodput.job_time import JobTime
from perf_callbacks.kernel.records.codec import Entry
from perf_callbacks.report.history import gather
from perf_callbacks.report.payload import payload

HOUR = 3600.0


def of(*journals):
    return job_time.from_attempts(attempts_of(*journals))


def gpu_job():
    steps = {"data_time": (0.4 * HOUR,) * 20}
    return of(a_journal(started=0.0, times=(HOUR,) * 20, world_size=64, tensor_cores=True, steps=steps))


def test_the_sentence_names_the_largest_loss():
    assert text.sentence(gpu_job()) == "60.0% of 1,280 GPU-hours bought progress; 512 h were the loader."
    short = of(a_journal(started=0.0, times=(1.0,) * 4), a_journal(started=10.0, first=3, times=(1.0,) * 2))
    assert text.sentence(short) == "33.3% of 12.0 s bought progress; 6.0 s were downtime."
    assert text.sentence(of(a_journal(started=0.0, times=(1.0,) * 4))) == "100.0% of 4.0 s bought progress."
    assert text.sentence(of(a_journal(started=0.0))) == "No time was measured."
    assert text.sentence(of(a_journal(started=0.0, times=(HOUR,) * 3))) == "100.0% of 3.0 device-hours bought progress."


def test_attempts_say_how_they_ended():
    job = of(
        a_journal(started=0.0, times=(1.0,) * 4, ended="ValueError"),
        a_journal(started=10.0, first=3, times=(1.0,) * 2, attempt=2),
        a_journal(started=20.0, first=5, times=(1.0,) * 2, attempt=3, ended=True),
    )
    head, *rows = text.attempts(job)
    assert [row[-1] for row in rows] == ["failed: ValueError", "killed", "ended"]
    assert rows[0] == ("1", "0", "1", "", "4.0 s", "4", "2", "failed: ValueError")
    assert rows[1] == ("2", "2", "1", "6.0 s", "2.0 s", "2", "≥ 0", "killed")
    assert len(head) == len(rows[0])
    assert [text.end(one, last=True) for one in job.attempts][1] == "killed, or goes on"


def test_notes_tell_choice_from_crash_and_name_unknown_kinds():
    job = of(
        a_journal(started=0.0, times=(1.0,) * 40, ended=True),
        a_journal(started=30.0, first=11, times=(1.0,) * 10, attempt=2),
        a_journal(started=60.0, first=16, times=(1.0,) * 10, attempt=3, world_size=2),
    )
    assert [*text.notes(job)] == [
        "Rolled back by choice: the attempts had ended in order: 30 steps.",
        "Rolled back after a crash or a kill: at least 5 steps.",
        "At least: the last seconds before a kill, and steps after a journal was full, are not on disk.",
        "Attempts ran at the same time for 10.0 s, or a clock was changed. This time counts for each of them.",
        "Not measured, and so part of other kinds: data, communication, restore.",
    ]


def test_a_full_journal_is_noted():
    (attempt,) = of(a_journal(started=0.0, times=(1.0,) * 4, ended=True, unseen=16)).attempts
    assert attempt.unseen_steps == 16
    full = JobTime(attempts=(replace(attempt, unseen_steps=1000),), overlap_seconds=0.0)
    assert "1,000 steps are in no journal, which was full (max_journal_mb): their time is part of other." in [
        *text.notes(full)
    ]


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
