"""The time of any history of attempts sums to the whole, whatever was killed, resumed, branched or torn."""

from dataclasses import asdict

import pytest
from attempt_histories import a_journal, attempts_of
from hypothesis import given, settings, strategies as st

from perf_callbacks.goodput import job_time
from perf_callbacks.goodput.time_kinds import DOWNTIME, KINDS, ROLLED_BACK
from perf_callbacks.kernel.records.codec import decode, encode
from perf_callbacks.kernel.records.fit_records import Span
from perf_callbacks.kernel.records.rank_records import Stall, Straggler

TIMES = st.lists(st.sampled_from([0.125, 0.25, 1.0, 2.0, 64.0]), max_size=12)
PLANS = st.lists(
    st.fixed_dictionaries(
        {
            "times": TIMES,
            "gap": st.sampled_from([-50.0, -1.0, 0.0, 0.5, 30.0, 1000.0]),
            "origin": st.none() | st.integers(0, 100),
            "back": st.integers(0, 100),
            "startup": st.sampled_from([None, 0.0, 5.0, 100.0]),
            "restore": st.sampled_from([None, 0.0, 2.0, 1e4]),
            "other": st.sampled_from([None, "span", "stall", "straggler"]),
            "ended": st.sampled_from([False, True, "killed by a signal"]),
            "ranks": st.sampled_from([1, 8]),
            "boot": st.none() | st.sampled_from(["a", "b"]),
            "sign": st.sampled_from([None, 0.0, 10.0, 1e6]),
        }
    ),
    min_size=1,
    max_size=6,
)


def records(kind, step):
    made = {
        "span": Span(kind="evaluation", step=step, start=1.0, seconds=4.0),
        "stall": Stall(step=step, rank=0, stage="data", since_seconds=3.0),
        "straggler": Straggler(step=step, rank=2, cause="data", seconds_lost=2.0),
    }
    return [(made[kind], 4.0)] if kind else []


def history(plans):
    """The journals of a history, and for each attempt the steps that survive, by a simulation step by step."""
    journals, lines, starts, now = [], [], [], 1e6
    for number, plan in enumerate(plans):
        origin = None if plan["origin"] is None or not number else plan["origin"] % number
        line = [] if origin is None else lines[origin]
        done = 0 if not line else plan["back"] % (len(line) + 1)
        done, origin = (done, origin) if done else (0, None)
        resumed = {} if origin is None else {"resumed_unix": starts[origin], "attempt": number + 1}
        now += plan["gap"] + number / 1024  # no two attempts begin at the same moment
        boot = {} if plan["boot"] is None else {"boot_id": plan["boot"], "uptime_seconds": now - 9e5}
        sign = None if plan["sign"] is None else now - plan["sign"]
        journals.append(
            a_journal(
                started=now, first=done + 1, times=tuple(plan["times"]), others=records(plan["other"], done),
                ended=plan["ended"], process_seconds=plan["startup"], restore_seconds=plan["restore"],
                world_size=plan["ranks"], last_sign_unix=sign,
                **resumed, **boot,
            )
        )  # fmt: skip
        starts.append(now)
        lines.append([*line[:done], *[number] * len(plan["times"])])
        now += max(0.125, journals[-1][-1].t)
    return journals, [lines[-1].count(number) for number in range(len(plans))]


def exact(job):
    return [(attempt.run, dict(attempt.seconds), attempt.kept_steps, attempt.origin) for attempt in job.attempts]


@settings(max_examples=150)
@given(PLANS, st.randoms(use_true_random=False))
def test_kinds_sum_to_the_whole_and_order_of_reading_does_not_matter(plans, chance):
    journals, _ = history(plans)
    job = job_time.from_attempts(attempts_of(*journals))
    assert len(job.attempts) == len(plans)
    for attempt in job.attempts:
        assert min(attempt.seconds.values()) >= 0
        assert {*attempt.seconds} <= {*KINDS}
        assert 0 <= attempt.kept_steps <= attempt.steps
    ends = max(attempt.began_seconds + attempt.all_seconds - attempt.seconds[DOWNTIME] for attempt in job.attempts)
    assert job.all_seconds == pytest.approx(ends + job.overlap_seconds, abs=1e-6)
    assert sum(job.seconds.values()) == pytest.approx(job.all_seconds)
    assert job.ettr is None or 0 <= job.ettr <= 1
    together = [entry for journal in journals for entry in journal]
    assert job_time.from_attempts(attempts_of(together)).all_seconds >= job.all_seconds - 1e-6  # a file knows more
    mixed = [*journals]
    chance.shuffle(mixed)
    assert exact(job_time.from_attempts(attempts_of(*mixed))) == exact(job)


@settings(max_examples=150)
@given(PLANS)
def test_surviving_steps_agree_with_a_simulation(plans):
    forward = [plan | {"gap": max(0.5, plan["gap"]), "boot": None} for plan in plans]
    journals, survivors = history(forward)
    job = job_time.from_attempts(attempts_of(*journals))
    assert [attempt.kept_steps for attempt in job.attempts] == survivors
    lost = [
        sum(plan["times"]) > 0 and attempt.rolled_back_steps > 0
        for plan, attempt in zip(forward, job.attempts, strict=True)
    ]
    assert [attempt.seconds[ROLLED_BACK] > 0 for attempt in job.attempts] == lost


@settings(max_examples=60)
@given(PLANS, st.data())
def test_a_torn_journal_loses_time_and_steps_but_no_sum(plans, data):
    journals, _ = history(plans)
    text = "\n".join([encode(entry) for journal in journals for entry in journal])
    first = data.draw(st.integers(0, len(text)))
    last = data.draw(st.integers(first, len(text)))
    torn = attempts_of(filter(None, map(decode, (text[:first] + text[last:]).split("\n"))))
    if torn:
        job = job_time.from_attempts(torn)
        assert min(min(attempt.seconds.values()) for attempt in job.attempts) >= 0
        assert asdict(job)["overlap_seconds"] >= 0
