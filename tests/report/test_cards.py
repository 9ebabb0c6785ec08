"""What a person reads, compared whole."""

from dataclasses import replace

import pytest
from fakes import BLOCKING, LOADER, OPTIMIZER, a_run
from summaries import a_summary_of
from tiny import unwrapped

from perf_callbacks.flops.work import beside_model
from perf_callbacks.kernel.records.fit_records import APPLIED, Checklist, Finding
from perf_callbacks.kernel.records.summary_parts import EnergySummary
from perf_callbacks.report import cards, opening_card


def test_the_path_of_a_journal_shows_no_control_character():
    assert "journal a\\x1b[2Jb" in opening_card.opening(a_run(), journal="a\x1b[2Jb")


def summary(**changes):
    usual = {
        "run_id": "a1",
        "attempt": 1,
        "step": 120,
        "steps": 120,
        "included_steps": 100,
        "included_seconds": 2.0,
        "stage_seconds": {
            "data_time": 0.0,
            "forward_time": 0.5,
            "backward_time": 1.25,
            "optimizer_time": 0.25,
            "gc_time": 0.0004,
            "other_time": 0.0,
        },
        "span_seconds": {"evaluation": 75.25, "checkpoint": 0.5},
        "samples": 480,
        "tokens": 3840,
        "included_samples": 400,
        "included_tokens": 3200,
        "included_useful_tokens": 2345,
        "total_samples": 480,
        "total_tokens": 3840,
        "gc_collections": (1200, 30, 4),
        "gc_seconds": 0.25,
        "gc_longest": 0.0125,
    }
    return a_summary_of(**usual | changes)


FULL = """\
perf_callbacks: 120 steps, 100 measured (20 excluded): 20.0 ms per step
  a measured step:
  data               0    0.0%
  forward      5.00 ms   25.0%
  backward     12.5 ms   62.5%
  optimizer    2.50 ms   12.5%
  gc              4 us    0.0%
  other              0    0.0%
  this process: 200 samples/s   1,600 tokens/s   1,172 useful tokens/s
  1,234 garbage collections (young/middle/full 1200/30/4) took 250 ms, the
    longest 12.5 ms"""

ACCOUNT = {"startup": 0.5, "first_step": 0.25, "flop_counting": 0.125, "steps": 60.0, "evaluation": 30.0}
ACCOUNT |= {"checkpoint": 4.0, "own_work": 0.0, "other": 5.125}

NOTHING = {
    "included_steps": 0,
    "included_seconds": 0.0,
    "stage_seconds": {"data_time": 0.0, "forward_time": 0.0},
    "span_seconds": {},
    "included_samples": 0,
    "included_tokens": 0,
    "included_useful_tokens": 0,
    "gc_collections": (0, 0, 0),
}
UNKNOWN = {
    "stage_seconds": {},
    "span_seconds": {},
    "included_samples": None,
    "included_tokens": None,
    "included_useful_tokens": None,
    "gc_collections": None,
    "gc_seconds": None,
    "gc_longest": None,
}
WORKED = {
    "model_flops": 10**12,
    "hardware_flops": 10**12,
    "flops_seconds": 2.0,
    "flops_dtype": "float32",
    "flops_source": "counted",
    "flops_checked_step": 115,
    "peak_flops_per_second": 1e12,
    "peak_measured": True,
    "peak_source": "measured on cpu",
}


def test_the_closing_table_says_where_the_time_went():
    assert cards.closing(summary()) == FULL


def test_the_closing_table_names_parts_of_other():
    closing = cards.closing(summary(other_seconds={"generation": 0.5, "rewards": 0.01}))
    assert (
        """
  other              0    0.0%
    generation 5.00 ms   25.0%
    rewards     100 us    0.5%
"""
        in closing
    )


def test_the_closing_table_leaves_out_what_is_unknown():
    expected = "perf_callbacks: 120 steps, 100 measured (20 excluded): 20.0 ms per step"
    assert cards.closing(summary(**UNKNOWN)) == expected + UNKNOWN_AMOUNTS


UNKNOWN_AMOUNTS = """
  samples/s unknown: some batches don't show their samples, or were not seen
  tokens/s unknown: no `input_ids`; a FLOP count would also look for embeddings"""


def test_the_closing_table_says_why_flops_are_a_lower_bound():
    low = WORKED | {"flops_lower_bound": True}
    reasons = {
        "part of the step was not counted": {"flops_coverage": 1.0},
        "3.0% of the weights were in no counted product": {"flops_coverage": 0.97},
        "not counted: a, b, c and 1 more": {"flops_coverage": 1.0, "flops_uncounted": ("a", "b", "c", "d")},
        "not counted: a; 50.0% of the weights were in no counted product": {
            "flops_coverage": 0.5,
            "flops_uncounted": ("a",),
        },
    }
    for reason, fields in reasons.items():
        assert f"\n  ≥: {reason}\n" in cards.closing(summary(**low | fields)) + "\n"


def test_the_closing_table_has_units_that_can_be_read():
    small = {"model_flops": 11_300, "hardware_flops": 11_300, "flops_seconds": 1.0, "peak_flops_per_second": 33.3e6}
    closing = cards.closing(summary(**WORKED | small))
    assert "11.3 kFLOPS of the model, 11.3 kFLOPS including recomputation" in closing
    assert "MFU 0.034%, HFU 0.034% of measured peak 33.3 MFLOPS" in unwrapped(closing)


def test_executed_flops_are_named_by_their_kind():
    by_phase = {"forward": 1, "backward": 2}
    kinds = {
        "": {},
        ", 2.00 TFLOPS including recomputation": {"attention_recompute": 1},
        ", 2.00 TFLOPS including the optimizer's products": {"optimizer": 1},
        ", 2.00 TFLOPS including recomputation and the optimizer's products": {"recompute": 1, "optimizer": 1},
    }
    known = summary(**WORKED | {"hardware_flops": 4 * 10**12, "model_flops": 2 * 10**12})
    for kind, phases in kinds.items():
        flops = replace(known.flops, beside_model=beside_model(by_phase | phases))
        line = f"\n  1.00 TFLOPS of the model{kind}, counted"
        assert line in unwrapped(cards.closing(replace(known, flops=flops)))


@pytest.mark.parametrize(("steps", "count"), [(0, "0 steps"), (1, "1 step"), (2, "2 steps")])
def test_the_closing_table_of_nothing_to_speak_of(steps, count):
    expected = f"""\
perf_callbacks: {count}, none measured
  a measured step:
  data               —       —
  forward            —       —
  no garbage collection ran"""
    assert cards.closing(summary(**NOTHING, steps=steps)) == expected


def test_the_closing_table_tells_the_energy_of_the_device():
    energy = EnergySummary(joules=20_000.0, steps=50)
    known = summary(energy=energy, included_steps=40, included_tokens=160_000)
    assert "energy of the whole device: 400 J per step, 100 mJ per token" in cards.closing(known)
    untold = summary(energy=energy, included_tokens=None)
    assert untold.joules_per_token is None
    assert cards.closing(untold).splitlines()[-1].endswith("energy of the whole device: 400 J per step")
    assert "energy" not in cards.closing(summary())


def test_the_closing_table_counts_the_steps_without_a_time():
    expected = """\
perf_callbacks: 120 steps, 100 measured (20 excluded), 3 without a time:
  20.0 ms per step"""
    assert cards.closing(summary(**UNKNOWN, lost_steps=3)) == expected + UNKNOWN_AMOUNTS


def test_the_closing_table_says_why_measuring_stopped():
    expected = "\n  1 garbage collection (young/middle/full 0/0/1) took 1.50 s, the longest 1.50 s"
    expected += "\n  measuring stopped early: OSError: gone"
    closing = cards.closing(summary(gc_collections=(0, 0, 1), gc_seconds=1.5, gc_longest=1.5, failure="OSError: gone"))
    assert closing.endswith(expected)


def test_the_closing_table_parts_collections_of_checklist_and_program():
    changes = {"gc_collections": (3, 1, 0), "gc_seconds": 0.02, "gc_longest": 0.01}
    own = {"gc_scheduled_seconds": 0.005, "gc_startup_seconds": 0.25}
    told = "\n  4 garbage collections (young/middle/full 3/1/0) took 20.0 ms, the longest 10.0 ms"
    told += "; 5.00 ms of it scheduled by the checklist; one full collection by the checklist took 250 ms"
    assert unwrapped(cards.closing(summary(**changes, **own))).endswith(told)
    nothing = {"gc_collections": (0, 0, 0), "gc_seconds": 0.0, "gc_longest": 0.0, "gc_startup_seconds": 0.25}
    told = "\n  no garbage collection ran; one full collection by the checklist took 250 ms"
    assert cards.closing(summary(**nothing)).endswith(told)


def test_the_closing_table_accounts_for_the_wall_time():
    expected = """\
perf_callbacks: No single cause stands out: forward, backward and optimizer
  took 60% of the run.
  120 steps, 100 measured (without first step, FLOP counts, evaluations,
    checkpoints): 20.0 ms per step
  100 s since measuring began: startup 500 ms (0.5%), first step 250 ms (0.2%),
    FLOP counting 125 ms (0.1%), steps 60.0 s (60.0%),
    evaluation 30.0 s (30.0%), checkpoint 4.00 s (4.0%), elsewhere 5.12 s (5.1%)
"""
    assert cards.closing(summary(wall_seconds=ACCOUNT)).startswith(expected)


def test_the_closing_table_opens_with_the_verdict():
    expected = """\
perf_callbacks: Waiting for data took 46% of the run: num_workers=0; try
  DataLoader(num_workers=2). Up to 1.8x faster.
  also: The optimizer took 5% of the run: AdamW updates 430 tensors one by one;
    try torch.optim.AdamW(..., fused=True) (saves up to 3%)
  also: CUDA_LAUNCH_BLOCKING=1 waits for each kernel; try unsetting
    CUDA_LAUNCH_BLOCKING
  120 steps, 100 measured (without first step, FLOP counts, evaluations,
    checkpoints): 20.0 ms per step
  100 s since measuring began: """
    closing = cards.closing(summary(wall_seconds=ACCOUNT, findings=(LOADER, OPTIMIZER, BLOCKING)))
    assert closing.startswith(expected)


def test_a_machine_is_told_the_advice_that_needs_no_run():
    expected = """\
Training on cpu would begin with
  the checklist is turned off
  advice: CUDA_LAUNCH_BLOCKING=1 waits for each kernel; try unsetting
    CUDA_LAUNCH_BLOCKING
No peak."""
    assert opening_card.check("cpu", [], "No peak.", [BLOCKING]) == expected


def test_a_fit_opens_with_three_pieces_of_advice_at_most():
    lines = opening_card.opening(a_run(), journal=None, findings=[BLOCKING] * 4).splitlines()
    assert lines[2:4] == [
        "  advice: CUDA_LAUNCH_BLOCKING=1 waits for each kernel; try unsetting",
        "    CUDA_LAUNCH_BLOCKING",
    ]
    assert len(lines) == 2 + 3 * 2
    assert "advice" not in opening_card.opening(a_run(), journal=None)


def test_the_closing_table_says_that_there_is_nothing_to_win():
    assert cards.verdict(summary(wall_seconds={"steps": 97.0, "other": 3.0})) == (
        "Nothing to win here: forward, backward and optimizer took 97% of the run."
    )


def test_the_closing_table_says_that_there_is_little_to_win():
    expected = """\
perf_callbacks: Little to win here: forward, backward and optimizer took 97%
  of the run.
  also: The optimizer took 5% of the run: AdamW updates 430 tensors one by one;
    try torch.optim.AdamW(..., fused=True) (saves up to 3%)
  120 steps"""
    busy = summary(wall_seconds={"startup": 5.0, "steps": 97.0, "other": 3.0}, findings=(OPTIMIZER,))
    assert cards.closing(busy).startswith(expected)


@pytest.mark.parametrize(
    ("share", "low", "faster", "saves"),
    [
        (0.5, 0.3, "1.4x to 2.0x faster", "30% to 50%"),
        (0.5, 0.46, "Up to 2.0x faster", "up to 50%"),
        (0.5, None, "Up to 2.0x faster", "up to 50%"),
        (0.11, 0.09, "Up to 1.1x faster", "9% to 11%"),
        (0.5, 0.005, "Up to 2.0x faster", "up to 50%"),
    ],
)
def test_a_share_with_distant_ends_is_a_range(share, low, faster, saves):
    finding = replace(LOADER, share=share, low=low)
    assert f"{faster}." in cards.live(finding, 60.0).replace("\n  ", " ")
    also = cards.closing(summary(wall_seconds=ACCOUNT, findings=(replace(LOADER, low=0.0), finding)))
    assert f"(saves {saves})" in also.replace("\n    ", " ")


def test_threads_without_a_cpu_are_the_verdict_of_a_run_with_nothing_else():
    threads = Finding(cause="threads", share=None, evidence="Operations use 16 threads", remedy="OMP_NUM_THREADS=2")
    lines = cards.closing(summary(wall_seconds={"steps": 97.0, "other": 3.0}, findings=(threads, BLOCKING)))
    assert lines.startswith("perf_callbacks: Operations use 16 threads; try OMP_NUM_THREADS=2.\n  also: CUDA_LAUNCH")
    assert "to win" not in lines


@pytest.mark.verdict_after_ten_seconds
def test_a_run_that_is_too_short_says_what_a_verdict_lacks():
    sentences = {
        (100, 9.97): "it needs 10 s of steps and has 9.9 s.",
        (4, 60.0): "it needs 5 measured steps and has 4.",
        (4, 7.8): "it needs 5 measured steps and has 4, and 10 s of steps and has 7.8 s.",
    }
    for (steps, seconds), sentence in sentences.items():
        run = summary(included_steps=steps, wall_seconds={"steps": seconds}, findings=(BLOCKING,))
        assert cards.lines(run)[0] == f"No verdict: {sentence}"
        assert cards.lines(run)[1].startswith("found: CUDA_LAUNCH")


def test_a_rule_that_failed_leaves_the_verdict_to_a_large_finding():
    failed = Finding(cause="failed", share=None, evidence="The rule `x` of the advice failed: E", remedy="reporting it")
    run = {"wall_seconds": {"steps": 97.0, "other": 3.0}}
    lines = unwrapped(cards.closing(summary(**run, findings=(failed,))))
    assert lines.startswith("perf_callbacks: No verdict, because a rule of the advice failed.\n  found: The rule `x`")
    lines = unwrapped(cards.closing(summary(**run, findings=(LOADER, failed))))
    assert lines.startswith("perf_callbacks: Waiting for data")
    assert "\n  also: The rule `x` of the advice failed: E; try reporting it\n" in lines


def test_a_run_without_a_measured_step_says_nothing_of_a_verdict():
    assert "erdict" not in cards.closing(summary(included_steps=0, wall_seconds=ACCOUNT))


@pytest.mark.parametrize("changes", [{"included_steps": 4}, {"wall_seconds": {}}, {"stage_seconds": {}}])
def test_the_closing_table_has_no_verdict_where_too_little_is_known(changes):
    assert "to win" not in cards.closing(summary(**{"wall_seconds": ACCOUNT} | changes))


@pytest.mark.parametrize("columns", ["80", "120"])
@pytest.mark.parametrize("color", ["", "1"])
@pytest.mark.parametrize("findings", [(), (LOADER, OPTIMIZER, BLOCKING)])
def test_cards_are_plain_and_80_columns_wide_whatever_shows_them(findings, columns, color, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("NO_COLOR", color)
    full = {"wall_seconds": ACCOUNT, "lost_steps": 3, "stalls": 2, "failure": "no " * 40}
    full |= {"gc_scheduled_seconds": 0.005, "gc_startup_seconds": 0.25, **WORKED, "flops_coverage": 1.0}
    row = Checklist(item="gc", status=APPLIED, before="automatic, thresholds 700/10/10", after="every 100 steps " * 4)
    opening = opening_card.opening(a_run(), journal="out/rank0.jsonl", checklist=[row], findings=findings)
    for card in (cards.closing(summary(**full, findings=findings)), opening):
        assert max(map(len, card.splitlines())) <= 80
        assert "\x1b" not in card


def test_the_closing_table_names_a_measured_peak():
    line = "MFU 50.0%, HFU 50.0% of measured peak 1.00 TFLOPS (float32)"
    assert line in unwrapped(cards.closing(summary(**WORKED)))


@pytest.mark.parametrize(
    ("run", "journal", "expected"),
    [
        (a_run(), "out/rank0.jsonl", "cpu (host clock), garbage collection timed, journal out/rank0.jsonl"),
        (a_run(config={"gc": "off"}), None, "cpu (host clock), garbage collection not timed, no journal"),
        (
            a_run(device="NVIDIA H200", timeline="device", attempt=3, step=40, from_env=("gc", "window")),
            None,
            """NVIDIA H200 (device events), garbage collection timed, attempt 3 from step 40, \
set by environment: gc, window, no journal""",
        ),
        (
            a_run(
                from_env=("gc",),
                from_file={
                    "window": "perf.yaml, line 2",
                    "report": "accelerate's config",
                    "flops": "perf.yaml, line 3",
                },
            ),
            None,
            """cpu (host clock), garbage collection timed, set by environment: gc, \
set by perf.yaml: window, flops, set by accelerate's config: report, no journal""",
        ),
    ],
)
def test_the_opening_line_says_what_is_measured_and_where_it_goes(run, journal, expected):
    opening = "perf_callbacks 1.0: step time, stages and throughput on "
    assert unwrapped(opening_card.opening(run, journal=journal)) == opening + expected


def test_stalls_are_counted_with_what_they_cost():
    assert "\n  2 stalls, 130 s without a step" in cards.closing(summary(stalls=2, stall_seconds=130.4))
    assert "stall" not in cards.closing(summary())


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
    ("value", "expected"), [(13760.4, "13,760"), (999, "999"), (31.41, "31.4"), (3.14159, "3.14"), (0.0123, "0.0123")]
)
def test_a_rate_has_three_figures_or_more(value, expected):
    assert cards.rate(value) == expected
