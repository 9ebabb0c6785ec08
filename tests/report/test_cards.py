"""What a person reads, compared whole."""

from dataclasses import replace
from pathlib import Path

import pytest
from fakes import BLOCKING, LOADER, OPTIMIZER, a_run
from rows import each_row
from snapshots import matches
from summaries import a_summary_of

from perf_callbacks.flops.work import beside_model
from perf_callbacks.kernel.records.fit_records import Finding
from perf_callbacks.kernel.records.summary_parts import EnergySummary
from perf_callbacks.report import cards, opening_card


def test_the_path_of_a_journal_shows_no_control_character():
    assert "journal a\\x1b[2Jb" in opening_card.opening(a_run(), journal="a\x1b[2Jb")


def summary(**changes):
    times = {"data_time": 0.0, "forward_time": 0.5, "backward_time": 1.25, "optimizer_time": 0.25, "gc_time": 0.0004}
    usual = {
        "run_id": "a1", "attempt": 1, "step": 120, "steps": 120, "included_steps": 100, "included_seconds": 2.0,
        "stage_seconds": times | {"other_time": 0.0}, "span_seconds": {"evaluation": 75.25, "checkpoint": 0.5},
        "samples": 480, "tokens": 3840, "included_samples": 400, "included_tokens": 3200,
        "included_useful_tokens": 2345, "total_samples": 480, "total_tokens": 3840, "gc_collections": (1200, 30, 4),
        "gc_seconds": 0.25, "gc_longest": 0.0125,
    }  # fmt: skip
    return a_summary_of(**usual | changes)


ACCOUNT = {"startup": 0.5, "first_step": 0.25, "flop_counting": 0.125, "steps": 60.0, "evaluation": 30.0}
ACCOUNT |= {"checkpoint": 4.0, "own_work": 0.0, "other": 5.125}

NOTHING = {
    "included_steps": 0, "included_seconds": 0.0, "stage_seconds": {"data_time": 0.0, "forward_time": 0.0},
    "span_seconds": {}, "included_samples": 0, "included_tokens": 0, "included_useful_tokens": 0,
    "gc_collections": (0, 0, 0),
}  # fmt: skip
UNKNOWN = {
    "stage_seconds": {}, "span_seconds": {}, "included_samples": None, "included_tokens": None,
    "included_useful_tokens": None, "gc_collections": None, "gc_seconds": None, "gc_longest": None,
}  # fmt: skip
WORKED = {
    "model_flops": 10**12, "hardware_flops": 10**12, "flops_seconds": 2.0, "flops_dtype": "float32",
    "flops_source": "counted", "flops_checked_step": 115, "peak_flops_per_second": 1e12, "peak_measured": True,
    "peak_source": "measured on cpu",
}  # fmt: skip


LOW = WORKED | {"flops_lower_bound": True}
ENERGY = EnergySummary(joules=20_000.0, steps=50)
COLLECTED = {"gc_collections": (3, 1, 0), "gc_seconds": 0.02, "gc_longest": 0.01, "gc_scheduled_seconds": 0.005}
BUSY = {"startup": 5.0, "steps": 97.0, "other": 3.0}
THREADS = Finding(cause="threads", share=None, evidence="Operations use 16 threads", remedy="OMP_NUM_THREADS=2")
FAILED = Finding(cause="failed", share=None, evidence="The rule `x` of the advice failed: E", remedy="reporting it")


def executed(**phases):
    """A run whose executed FLOPs are those of the model and of these phases."""
    known = summary(**WORKED | {"hardware_flops": 4 * 10**12, "model_flops": 2 * 10**12})
    beside = beside_model({"forward": 1, "backward": 2} | phases)
    return replace(known, flops=replace(known.flops, beside_model=beside))


CLOSINGS = {
    "where the time went": summary(),
    "parts of other": summary(other_seconds={"generation": 0.5, "rewards": 0.01}),
    "unknown amounts": summary(**UNKNOWN),
    "a lower bound, part of the step": summary(**LOW, flops_coverage=1.0),
    "a lower bound, weights": summary(**LOW, flops_coverage=0.97),
    "a lower bound, operations": summary(**LOW, flops_coverage=1.0, flops_uncounted=("a", "b", "c", "d", "e")),
    "a lower bound, both": summary(**LOW, flops_coverage=0.5, flops_uncounted=("a",)),
    "units that can be read": summary(
        **WORKED
        | {"model_flops": 11_300, "hardware_flops": 11_300, "flops_seconds": 1.0, "peak_flops_per_second": 33.3e6}
    ),
    "executed as the model": executed(),
    "executed with recomputation": executed(attention_recompute=1),
    "executed with the optimizer": executed(optimizer=1),
    "executed with both": executed(recompute=1, optimizer=1),
    "no step": summary(**NOTHING, steps=0),
    "one step": summary(**NOTHING, steps=1),
    "two steps": summary(**NOTHING, steps=2),
    "energy": summary(energy=ENERGY, included_steps=40, included_tokens=160_000),
    "energy without tokens": summary(energy=ENERGY, included_tokens=None),
    "steps without a time": summary(**UNKNOWN, lost_steps=3),
    "measuring stopped": summary(gc_collections=(0, 0, 1), gc_seconds=1.5, gc_longest=1.5, failure="OSError: gone"),
    "collections of checklist and program": summary(**COLLECTED, gc_startup_seconds=0.25),
    "a collection of the checklist alone": summary(
        gc_collections=(0, 0, 0), gc_seconds=0.0, gc_longest=0.0, gc_startup_seconds=0.25
    ),
    "the wall time": summary(wall_seconds=ACCOUNT),
    "the verdict": summary(wall_seconds=ACCOUNT, findings=(LOADER, OPTIMIZER, BLOCKING)),
    "nothing to win": summary(wall_seconds={"steps": 97.0, "other": 3.0}),
    "little to win": summary(wall_seconds=BUSY, findings=(OPTIMIZER,)),
    "threads without a CPU": summary(wall_seconds=BUSY, findings=(THREADS, BLOCKING)),
    "a rule that failed": summary(wall_seconds=BUSY, findings=(FAILED,)),
    "a rule that failed beside a large finding": summary(wall_seconds=BUSY, findings=(LOADER, FAILED)),
    "no measured step": summary(included_steps=0, wall_seconds=ACCOUNT),
    "too few steps": summary(wall_seconds=ACCOUNT, included_steps=4),
    "no stages": summary(wall_seconds=ACCOUNT, stage_seconds={}),
    "a measured peak": summary(**WORKED),
    "stalls": summary(stalls=2, stall_seconds=130.4),
}  # fmt: skip
LIVE = [(0.5, 0.3), (0.5, 0.46), (0.5, None), (0.11, 0.09), (0.5, 0.005)]
"""Shares that could be won, and their lower ends."""
FROM_FILES = {"window": "perf.yaml, line 2", "report": "accelerate's config", "flops": "perf.yaml, line 3"}
RESTARTED = {"device": "NVIDIA H200", "timeline": "device", "attempt": 3, "step": 40, "from_env": ("gc", "window")}
OPENINGS = {
    "a journal": (a_run(), {"journal": "out/rank0.jsonl"}),
    "collections that are not timed": (a_run(config={"gc": "off"}), {"journal": None}),
    "a restart on a GPU": (a_run(**RESTARTED), {"journal": None}),
    "settings from files": (a_run(from_env=("gc",), from_file=FROM_FILES), {"journal": None}),
    "three pieces of advice at most": (a_run(), {"journal": None, "findings": [BLOCKING] * 4}),
}


def texts():
    """What each case shows, by its name."""
    shown = {name: cards.closing(run) for name, run in CLOSINGS.items()}
    for share, low in LIVE:
        finding = replace(LOADER, share=share, low=low)
        closing = cards.closing(summary(wall_seconds=ACCOUNT, findings=(replace(LOADER, low=0.0), finding)))
        shown[f"a share of {share}, at least {low}"] = f"{cards.live(finding, 60.0)}\n{closing}"
    for name, (run, known) in OPENINGS.items():
        shown[f"opening: {name}"] = opening_card.opening(run, **known)
    shown["check"] = opening_card.check("cpu", [], "No peak.", [BLOCKING])
    return shown


def test_cards_are_as_their_snapshot():
    """`WRITE_SNAPSHOTS=1` writes it anew."""
    snapshot = Path(__file__).with_name("cards") / "texts.txt"
    assert matches(snapshot, "\n".join([f"=== {name}\n{text}\n" for name, text in texts().items()]))


@pytest.mark.verdict_after_ten_seconds
def test_a_run_that_is_too_short_says_why_it_has_no_verdict():
    sentences = {
        (100, 9.97): "it needs 10 s of steps and has 9.9 s.",
        (4, 60.0): "it needs 5 measured steps and has 4.",
        (4, 7.8): "it needs 5 measured steps and has 4, and 10 s of steps and has 7.8 s.",
    }
    for (steps, seconds), sentence in sentences.items():
        run = summary(included_steps=steps, wall_seconds={"steps": seconds}, findings=(BLOCKING,))
        assert cards.lines(run)[0] == f"No verdict: {sentence}"
        assert cards.lines(run)[1].startswith("found: CUDA_LAUNCH")


@each_row(
    ("seconds", "expected"),
    [
        (None, "—"),
        (0, "0"),
        (1e-6, "1 us"),
        (0.000999, "999 us"),
        (0.001, "1.00 ms"),
        (0.01234, "12.3 ms"),
        (0.5, "500 ms"),
        (1, "1.00 s"),
        (75.3, "75.3 s"),
        (12345, "12,345 s"),
    ],
)
def test_a_duration_has_three_figures(seconds, expected):
    assert cards.duration(seconds) == expected


@each_row(
    ("value", "expected"), [(13760.4, "13,760"), (999, "999"), (31.41, "31.4"), (3.14159, "3.14"), (0.0123, "0.0123")]
)
def test_a_rate_has_three_figures_or_more(value, expected):
    assert cards.rate(value) == expected
