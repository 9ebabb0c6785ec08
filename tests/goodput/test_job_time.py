"""The time of a job over its attempts: which kind each second is, and which steps survive."""

from dataclasses import replace

import pytest
from attempt_histories import a_journal, attempts_of
from fakes import a_run
from rows import each_row

from perf_callbacks.goodput import job_time
from perf_callbacks.goodput.attempt_order import survivors
from perf_callbacks.goodput.text import notes
from perf_callbacks.goodput.time_kinds import (
    CHECKPOINT,
    COMMUNICATION,
    DATA,
    DOWNTIME,
    EVALUATION,
    FIRST_STEP,
    KINDS,
    OTHER,
    PRODUCTIVE,
    RESTORE,
    ROLLED_BACK,
    STALLS,
    STARTUP,
    STRAGGLERS,
)
from perf_callbacks.kernel.records.fit_records import Span, Window
from perf_callbacks.kernel.records.machine_records import Use
from perf_callbacks.kernel.records.rank_records import Stall, Straggler

HOUR = 3600.0


def of(*journals):
    return job_time.from_attempts(attempts_of(*journals))


def known(job):
    """Seconds by kind, without zeros."""
    return {kind: seconds for kind, seconds in job.seconds.items() if seconds}


STALL = Stall(step=5, rank=0, stage="backward", since_seconds=60.0)
HUNG = a_journal(started=0.0, times=(1.0,) * 5, others=[(STALL, 60.0)])
LATER = a_journal(started=4000.0, first=6, times=(1.0,), attempt=2, resumed_unix=0.0, last_sign_unix=3605.0)
OTHER_RUN = a_journal(run_id="b1", started=500.0, times=(1.0,) * 9, last_sign_unix=305.0)
LOST = a_journal(started=0.0, times=(1.0,) * 5)
ENDED = a_journal(started=0.0, times=(1.0,) * 4, ended=True)
SLOW = [(Straggler(step=step, rank=3, cause="data", seconds_lost=lost), 0.0) for step, lost in ((2, 1.5), (4, 9.0))]
STRAGGLED = {"world_size": 4, "steps": {"communication_time": (0.5,) * 4}}
SAVED = [
    (Stall(step=4, rank=0, stage="checkpoint", since_seconds=3.0), 700.0),
    (Span(kind="checkpoint", step=4, start=4.0, seconds=700.0), 0.0),
]
EVALUATED = [
    (Stall(step=4, rank=0, stage="evaluation", since_seconds=60.0), 70.0),
    (Span(kind="evaluation", step=4, start=4.0, seconds=100.0), 30.0),
]
AGAIN = (Stall(step=4, rank=0, stage="data", since_seconds=15.0), 20.0)
ODD = {"excluded": (None, "counted", None, None, None), "data_time": (0.0, 0.0, 0.0, 101.0, 0.0)}
STALLED = [(replace(STALL, step=step, rank=rank, stage="data"), 0.0) for step, rank in ((3, 0), (2, 1))]
KNOWN = {
    "a start without a checkpoint rolls everything back": (
        [LOST, a_journal(started=50.0, run_id="a2", times=(1.0,) * 2)],
        {PRODUCTIVE: 2.0, ROLLED_BACK: 5.0, DOWNTIME: 45.0},
    ),
    "startup never reaches into the attempt before": (
        [LOST, a_journal(started=8.0, first=6, times=(1.0,), process_seconds=99.0)], {PRODUCTIVE: 6.0, STARTUP: 3.0},
    ),
    "a hang that was killed is a stall until the last sign of life": (
        [[*HUNG, *LATER]], {PRODUCTIVE: 6.0, STALLS: 3600.0, DOWNTIME: 395.0},
    ),
    "another run that wrote to the journal knows how long the hang lasted": (
        [[*HUNG, *OTHER_RUN, *LATER]], {PRODUCTIVE: 6.0, STALLS: 300.0, DOWNTIME: 3695.0},
    ),
    "the job goes on in another directory": (
        [[*HUNG, *OTHER_RUN], LATER], {PRODUCTIVE: 6.0, STALLS: 300.0, DOWNTIME: 3695.0},
    ),
    "a journal of its own knows nothing of the hang": (
        [HUNG, LATER], {PRODUCTIVE: 6.0, STALLS: 60.0, DOWNTIME: 3935.0},
    ),
    "a file written much later was copied": (
        [[*LOST, *a_journal(started=4000.0, first=6, times=(1.0,), last_sign_unix=3605.0)]],
        {PRODUCTIVE: 6.0, DOWNTIME: 3995.0},
    ),
    "a file written soon was alive": (
        [[*LOST, *a_journal(started=4000.0, first=6, times=(1.0,), last_sign_unix=8.0)]],
        {PRODUCTIVE: 6.0, DOWNTIME: 3992.0, OTHER: 3.0},
    ),
    "a file touched after the end makes no attempt longer": (
        [[*ENDED, *a_journal(started=400.0, first=5, times=(1.0,), attempt=2, last_sign_unix=100.0)]],
        {PRODUCTIVE: 5.0, DOWNTIME: 396.0},
    ),
    "stragglers are taken from waits first": (
        [
            a_journal(started=0.0, times=(2.0,) * 4, others=SLOW, **STRAGGLED),
            a_journal(started=8.0, first=3, times=(2.0,), world_size=4),
        ],
        {PRODUCTIVE: 4.5, STRAGGLERS: 1.5, ROLLED_BACK: 4.0},
    ),
    "a stall before an end in order is no hang": (
        [a_journal(started=0.0, times=(1.0,) * 4, others=SAVED, ended=True, tail=1000.0)],
        {PRODUCTIVE: 4.0, CHECKPOINT: 700.0, OTHER: 1000.0},
    ),
    "a stall in an evaluation that ended before a kill is no hang": (
        [a_journal(started=0.0, times=(1.0,) * 4, others=EVALUATED, tail=20.0)],
        {PRODUCTIVE: 4.0, EVALUATION: 100.0, OTHER: 20.0},
    ),
    "a stall in the step after the evaluation is a hang": (
        [a_journal(started=0.0, times=(1.0,) * 4, others=[*EVALUATED, AGAIN])],
        {PRODUCTIVE: 4.0, EVALUATION: 100.0, STALLS: 15.0, OTHER: 5.0},
    ),
    "the excess of counted and stalled steps is not productive": (
        [a_journal(started=0.0, times=(1.0, 3.0, 1.0, 101.0, 1.0), others=STALLED, steps=ODD)],
        {PRODUCTIVE: 4.0, DATA: 1.0, OTHER: 2.0, STALLS: 100.0},
    ),
    "steps around a checkpoint show the usual time too": (
        [a_journal(started=0.0, times=(600.0, *(10.0,) * 4), steps={"excluded": ("first", *("checkpoint",) * 4)})],
        {PRODUCTIVE: 50.0, FIRST_STEP: 590.0},
    ),
}  # fmt: skip
"""Journals, and the seconds of their job by kind."""


@each_row("case", KNOWN)
def test_each_second_has_its_kind(case):
    journals, seconds = KNOWN[case]
    attempts = [attempt for attempt in attempts_of(*journals) if attempt.run.run_id != "b1"]
    assert known(job_time.from_attempts(attempts)) == pytest.approx(seconds)


def test_a_single_attempt_is_split_by_kind():
    spans = [
        (Span(kind="evaluation", step=4, start=8.0, seconds=3.0), 3.0),
        (Span(kind="checkpoint", step=4, start=11.0, seconds=2.0), 2.0),
    ]
    data, excluded = (0.5, 0.25, 0.25, 0.25), ("first", None, None, None)
    job = of(
        a_journal(
            started=1000.0, times=(5.0, 1.0, 1.0, 1.0), others=spans, ended=True, tail=1.5, process_seconds=10.0,
            steps={"data_time": data, "excluded": excluded},
        )
    )  # fmt: skip
    assert known(job) == pytest.approx(
        {PRODUCTIVE: 3.15, DATA: 0.85, STARTUP: 10.0, FIRST_STEP: 4.0, EVALUATION: 3.0, CHECKPOINT: 2.0, OTHER: 1.5}
    )
    assert job.all_seconds == 24.5
    assert job.ettr == pytest.approx(4.0 / 24.5)
    assert job.goodput == pytest.approx(3.15 / 24.5)
    (attempt,) = job.attempts
    assert (attempt.steps, attempt.rolled_back_steps, attempt.ended, attempt.began_seconds) == (4, 0, True, 0.0)


def test_ten_lost_hours_of_a_hundred_are_an_ettr_of_0_9():
    before = a_journal(started=0.0, times=(60.0,) * 600)  # ten hours, of which five are lost
    after = a_journal(started=15 * HOUR, first=301, times=(60.0,) * 5100, attempt=2, resumed_unix=0.0)
    job = of(before, after)
    assert job.all_seconds == 100 * HOUR
    assert known(job) == {PRODUCTIVE: 90 * HOUR, ROLLED_BACK: 5 * HOUR, DOWNTIME: 5 * HOUR}
    assert job.ettr == pytest.approx(0.90)


def test_a_step_that_is_done_again_is_rolled_back_once_however_often():
    attempts = [
        a_journal(started=100.0 * number, first=3 * bool(number) + 1, times=(1.0,) * 10, attempt=1 + bool(number))
        for number in range(4)
    ]
    job = of(*attempts)
    assert [one.rolled_back_steps for one in job.attempts] == [7, 10, 10, 0]
    assert [one.origin for one in job.attempts] == [None, 0, 0, 0]


def test_a_branch_from_an_older_checkpoint_gives_up_the_other_branch():
    first = a_journal(started=0.0, times=(1.0,) * 20)
    branch = a_journal(started=100.0, first=11, times=(1.0,) * 5, attempt=2, resumed_unix=0.0)
    back = a_journal(started=200.0, first=21, times=(1.0,) * 5, attempt=2, resumed_unix=0.0)
    assert [one.kept_steps for one in of(first, branch).attempts] == [10, 5]
    assert [one.kept_steps for one in of(first, branch, back).attempts] == [20, 0, 5]


def test_a_clock_set_back_costs_no_time_and_is_told():
    job = of(a_journal(started=1000.0, times=(1.0,) * 50), a_journal(started=1010.0, first=51, times=(1.0,) * 5))
    assert known(job) == {PRODUCTIVE: 55.0}
    assert job.overlap_seconds == 5.0


def test_attempts_on_a_boot_are_placed_by_the_time_since_boot():
    boot = {"boot_id": "b"}
    first = a_journal(started=5000.0, times=(1.0,) * 10, uptime_seconds=100.0, **boot)
    second = a_journal(
        started=1000.0, first=11, times=(1.0,) * 10, uptime_seconds=130.0, attempt=2, resumed_unix=5000.0, **boot
    )
    job = of(second, first)
    assert known(job) == {PRODUCTIVE: 20.0, DOWNTIME: 20.0}
    assert [one.run.attempt for one in job.attempts] == [1, 2]
    assert job.overlap_seconds == 0


def test_an_attempt_comes_after_its_origin_even_if_another_clock_is_behind():
    first = a_journal(started=5000.0, times=(1.0,) * 10, boot_id="x", uptime_seconds=1.0)
    second = a_journal(started=100.0, first=6, times=(1.0,) * 10, attempt=2, resumed_unix=5000.0)
    job = of(second, first)
    assert [one.kept_steps for one in job.attempts] == [5, 10]


def test_kinds_that_were_not_measured_are_unknown():
    job = of(a_journal(started=0.0, times=(1.0,)))
    assert {*KINDS} - {*job.seconds} == {DATA, COMMUNICATION, STRAGGLERS, RESTORE}
    assert job_time.facts(job, None)["seconds"][DATA] is None


@pytest.mark.parametrize(
    ("process", "restore", "expected"),
    [
        (5.0, 2.0, {STARTUP: 3.0, RESTORE: 2.0, DOWNTIME: 5.0}),
        (None, 2.0, {RESTORE: 2.0, DOWNTIME: 8.0}),  # a later fit of a process, whose startup is unknown
        (99.0, 99.0, {RESTORE: 10.0}),
        (5.0, None, {STARTUP: 5.0, DOWNTIME: 5.0}),
    ],
)
def test_startup_contains_the_restore(process, restore, expected):
    second = a_journal(
        started=20.0, first=11, times=(1.0,) * 5, process_seconds=process, restore_seconds=restore, attempt=2
    )
    job = of(a_journal(started=0.0, times=(1.0,) * 10), second)
    assert known(job) == {PRODUCTIVE: 15.0, **expected}
    assert (RESTORE in job.seconds) == (restore is not None)


def test_an_attempt_without_a_window_leaves_the_tokens_known():
    columns = {"tokens": (100,) * 4}
    window = Window(first_step=1, last_step=4, steps=4, ranks=2, seconds=4.0, samples=None, tokens=800, useful_tokens=0)
    first = a_journal(started=0.0, times=(1.0,) * 4, others=[(window, 0.0)], steps=columns, world_size=2)
    dead = a_journal(started=10.0, first=5, attempt=2, world_size=2)
    assert of(first, dead).tokens == 800.0


def test_devices_weigh_the_attempts():
    small = a_journal(started=0.0, times=(1.0,) * 10, world_size=2, devices=2)
    large = a_journal(started=20.0, first=11, times=(1.0,) * 10, world_size=8)
    job = of(small, large)
    assert job.device_seconds[PRODUCTIVE] == 10 * 4 + 10 * 8
    assert job.device_seconds[DOWNTIME] == 10 * 8
    assert job.goodput == pytest.approx(120 / 200)
    assert job.ettr == pytest.approx(20 / 30)


def test_money_and_energy_are_per_surviving_token():
    uses = [(Use(step=2, energy_joules=300.0), 0.0), (Use(step=4, energy_joules=300.0), 0.0)]
    tokens = {"tokens": (100,) * 4}
    first = a_journal(started=0.0, times=(900.0,) * 4, others=uses, steps=tokens)
    last = a_journal(started=3600.0, first=3, times=(900.0,) * 4, others=uses, steps=tokens)
    facts = job_time.facts(of(first, last), 2.5)
    assert (facts["device_hours"], facts["money"], facts["tokens"]) == (2.0, 5.0, 600.0)
    assert facts["money_per_million_tokens"] == pytest.approx(5.0 / 600 * 1e6)
    assert facts["money_by_kind"][ROLLED_BACK] == pytest.approx(1.25)
    assert (facts["joules_of_one_device"], facts["joules_per_token"]) == (1200.0, 2.0)
    assert job_time.facts(of(first, last), None)["money"] is None


def test_attempts_without_energy_are_told_and_leave_the_others_known():
    uses, tokens = [(Use(step=4, energy_joules=600.0), 0.0)], {"tokens": (100,) * 4}
    first = a_journal(started=0.0, times=(1.0,) * 4, others=uses, steps=tokens)
    short = a_journal(started=10.0, first=5, times=(1.0,) * 4, steps=tokens)
    job = of(first, short)
    assert (job.joules, job.joules_per_token, job.tokens) == (600.0, 1.5, 800.0)
    assert [one["joules_of_one_device"] for one in job_time.facts(job, None)["attempts"]] == [600.0, None]
    assert "The energy of 1 of 2 attempts is unknown, and not part of the sum." in notes(job)
    assert (of(short).joules, of(short).joules_per_token) == (None, None)
    assert not any("energy" in note for note in [*notes(of(first)), *notes(of(short))])


def test_shared_devices_have_no_energy():
    shared = [(Use(step=2, energy_joules=300.0, gpu_processes=2), 0.0)]
    assert of(a_journal(started=0.0, times=(1.0,), others=shared)).joules is None


def window(tokens, **changes):
    usual = {
        "first_step": 2, "last_step": 3, "steps": 2, "ranks": 2, "seconds": 2.0, "samples": None,
        "useful_tokens": None,
    }  # fmt: skip
    return Window(**usual | {"tokens": tokens} | changes)


def test_tokens_of_all_ranks_come_from_the_windows():
    steps = {"tokens": (100, 100, 300, 100), "excluded": ("first", None, None, None)}
    journal = a_journal(started=0.0, times=(1.0,) * 4, world_size=2, steps=steps, others=[(window(600), 0.0)])
    assert of(journal).tokens == 900
    incomplete = [(window(600, missing=1), 0.0), (window(None), 0.0), (window(1, last_step=4), 0.0)]
    assert of(a_journal(started=0.0, times=(1.0,) * 4, world_size=2, steps=steps, others=incomplete)).tokens is None


def test_impossible_times_are_refused():
    with pytest.raises(ValueError, match="impossible"):
        job_time.from_attempts([])


def test_journals_that_lack_the_origin_are_joined_by_steps():
    first, second = attempts_of(
        a_journal(started=0.0, times=(1.0,) * 9), a_journal(started=20.0, first=5, times=(1.0,) * 9, attempt=2)
    )
    assert survivors([first, second]) == [4, 9]
    assert survivors([second]) == [9]
    assert a_run().resumed_unix is None
