"""Journals of several attempts, made by hand: what each attempt did, second by second."""

from fakes import a_run
from journals import a_summary

from perf_callbacks.kernel.records.codec import Entry
from perf_callbacks.kernel.records.fit_records import Steps
from perf_callbacks.report.history import gather


def a_journal(
    *, run_id="a1", started, first=1, times=(), others=(), ended=False, tail=0.0, block=256, steps=None, unseen=0, **run
):
    """The entries of one attempt: `times` are the seconds of its steps, `others` records with their seconds.

    Each other record lies after the steps, in order. `tail`: seconds of nothing before the last record. `unseen`:
    steps that the summary counts but the journal lacks.
    """
    steps = steps or {}
    opened = a_run(run_id=run_id, started_unix=started, step=first - 1, **run)
    entries, now = [Entry(0.0, opened)], 0.0
    numbers = [*range(first, first + len(times))]
    for start in range(0, len(times), block):
        part = slice(start, start + block)
        now += sum(times[part])
        columns = {name: tuple(column[part]) for name, column in steps.items()}
        entries.append(Entry(now, Steps(step=tuple(numbers[part]), step_time=tuple(times[part]), **columns)))
    for record, seconds in others:
        now += seconds
        entries.append(Entry(now, record))
    if ended:
        reason = None if ended is True else ended
        at = {"attempt": opened.attempt, "step": first - 1 + len(times), "steps": len(times) + unseen}
        end = a_summary(run_id=run_id, failure=reason, **at)
        entries.append(Entry(now + tail, end))
    elif tail:
        entries.append(Entry(now + tail, Steps(step=(), step_time=())))
    return entries


def attempts_of(*journals):
    """The attempts of the lowest rank in journals, of all runs, as a report reads them."""
    return [attempt for fit in gather(journals) for attempt in fit.first]
