"""The card at the end of training and its verdict, as text. `opening_card.py` renders the card at the start."""

import math
from collections.abc import Iterable, Sequence

from perf_callbacks.flops.by_shape.shaped_work import CLOSED_FORM, COPY
from perf_callbacks.flops.unknown_reasons import checked
from perf_callbacks.kernel.plural import plural
from perf_callbacks.kernel.records.fit_records import (
    ENOUGH_SECONDS,
    ENOUGH_STEPS,
    Checklist,
    Finding,
    Summary,
)
from perf_callbacks.kernel.records.flops_record import ENOUGH_COVERED
from perf_callbacks.kernel.records.shares import NOTABLE, WORTH
from perf_callbacks.kernel.records.summary_parts import FlopsSummary
from perf_callbacks.report import profile_text
from perf_callbacks.report.layout import COLUMNS, card, few, joined
from perf_callbacks.report.machine_load import MOST_SHARE
from perf_callbacks.report.units import DASH, duration, energy, percent, rate, size, speed
from perf_callbacks.stragglers import text as straggler_text

OURS = "perf_callbacks: "

STALL = "stall"

FAILED = "failed"
"""Cause of the finding that a rule failed, so that less than everything was looked for."""

THREADS = "threads"
"""Cause of the finding about threads without a CPU, a verdict although its share is unknown."""

CLEAR = 0.9
"""A saving is a range only if its lower end is below this share of the upper end."""

MOSTLY = 0.8
"""With this share of the time in forward, backward and optimizer, there is little or nothing to win."""

_PARTS = {"first_step": "first step", "flop_counting": "FLOP counting", "own_work": "own work", "other": "elsewhere"}
"""Where they differ from the names in the summary."""

_EXCLUDING = {
    "first_step": "first step",
    "flop_counting": "FLOP counts",
    "evaluation": "evaluations",
    "checkpoint": "checkpoints",
    "suspended": "suspensions",
}


def closing(summary: Summary, checklist: Sequence[Checklist] = (), columns: int = COLUMNS) -> str:
    first, *others = lines(summary, checklist)
    return card([OURS + first, *others], columns, indent="")


def lines(summary: Summary, checklist: Sequence[Checklist] = ()) -> list[str]:
    """Long lines are not broken yet."""
    parts = [
        *_verdict(summary),
        _headline(summary),
        *_account(summary),
        *_stages(summary),
        *_throughput(summary),
        _global_batch(summary),
        *_work(summary),
        _pauses(summary),
        *_applied(checklist),
        *straggler_text.lines(summary.stragglers, straggler_text.verdict_remedy(summary.findings)),
        _stalls(summary),
        *map(profile_text.line, summary.profiles),
        *_memory(summary),
        _energy(summary),
    ]
    if summary.failure:
        parts.append(f"measuring stopped early: {summary.failure}")
    return [*filter(None, parts)]


def verdict(summary: Summary) -> str:
    """What limits the run, and which change helps most. Empty: too little is known."""
    large = _large(summary)
    return _change(large[0]) if large else _nothing_to_win(summary)


def _large(summary: Summary) -> list[Finding]:
    hangs = summary.stalls is not None and summary.stalls.under_way
    least = 0 if hangs else NOTABLE
    return [finding for finding in summary.findings[:1] if finding.cause == THREADS or _sure(finding) >= least]


def _sure(finding: Finding) -> float:
    """Least share that a finding saves; negative if the share is unknown."""
    if finding.share is None:
        return -1.0
    return finding.share if finding.low is None else finding.low


def _verdict(summary: Summary) -> Iterable[str]:
    large, sentence = _large(summary), verdict(summary)
    yield sentence or _too_short(summary)
    label = "also" if sentence and (large or not _failed(summary)) else "found"
    for other in summary.findings[len(large) :]:
        if other.cause == STALL:
            yield f"{label}: {_change(other)}"
            continue
        yield f"{label}: {other.evidence}; try {other.remedy}{_saves(other)}"


def _failed(summary: Summary) -> bool:
    return any([finding.cause == FAILED for finding in summary.findings])


def _saves(finding: Finding) -> str:
    if finding.measured is not None:
        return f" ({_measured(*finding.measured)})"
    if finding.share is None:
        return ""
    low = finding.low or 0.0
    least = f"{low:.0%} to" if WORTH <= low < CLEAR * finding.share else "up to"
    return f" (saves {least} {finding.share:.0%})"


def _measured(low: float, factor: float, high: float) -> str:
    return f"measured: {factor:.2f}x [{low:.2f}, {high:.2f}]"


def live(finding: Finding, seconds: float, columns: int = COLUMNS) -> str:
    """Render a finding about the last `seconds`, without a measured run.

    >>> print(live(Finding(cause="data", share=0.2, evidence="Waiting for data took 25% of the run: num_workers=0",
    ...     remedy="DataLoader(num_workers=2)"), 60.0))
    perf_callbacks: Waiting for data took 25% of the last 60 s: num_workers=0; try
      DataLoader(num_workers=2). Up to 1.2x faster.
    """
    sentence = _change(finding).replace("of the run", f"of the last {seconds:.0f} s")
    return card([OURS + sentence], columns, indent="")


def _change(finding: Finding) -> str:
    if finding.cause == STALL:  # no change to the program is known
        return f"{finding.evidence}; see {finding.remedy}."
    sentence = f"{finding.evidence}; try {finding.remedy}."
    if finding.measured is not None:
        return f"{sentence} M{_measured(*finding.measured)[1:]}."
    return sentence if finding.share is None else f"{sentence} {promised(finding)}."


def promised(finding: Finding) -> str:
    """Render the speedup that a finding promises.

    >>> promised(Finding(cause="data", share=0.5, low=0.3, evidence="", remedy=""))
    '1.4x to 2.0x faster'
    """
    share = finding.share or 0.0
    # no estimate is exact enough to promise a larger share than `MOST_SHARE`
    low, high = (f"{1 / (1 - min(end or 0.0, MOST_SHARE)):.1f}x" for end in (finding.low, share))
    clear = finding.low is not None and finding.low < CLEAR * share and low not in {"1.0x", high}
    return f"{low} to {high} faster" if clear else f"Up to {high} faster"


def _nothing_to_win(summary: Summary) -> str:
    if _failed(summary):
        return "No verdict, because a rule of the advice failed."
    after_startup = sum(summary.wall_seconds.values()) - summary.wall_seconds.get("startup", 0.0)
    stages = [summary.stage_seconds.get(f"{name}_time") for name in ("forward", "backward", "optimizer")]
    seconds_by_stage = [seconds for seconds in stages if seconds is not None]
    if not summary.long_enough or not after_startup or not seconds_by_stage:
        return ""
    share = sum(seconds_by_stage) / summary.included_seconds * summary.wall_seconds["steps"] / after_startup
    little = "Little" if summary.findings else "Nothing"
    verdict = f"{little} to win here" if share >= MOSTLY else "No single cause stands out"
    return f"{verdict}: forward, backward and optimizer took {share:.0%} of the run."


def _too_short(summary: Summary) -> str:
    if summary.long_enough or not summary.included_steps:
        return ""
    return too_short(summary.included_steps, summary.wall_seconds.get("steps", 0.0))


def too_short(steps: int, seconds: float) -> str:
    """What a run with so many measured steps lacks for a verdict.

    >>> too_short(4, 7.85)
    'No verdict: it needs 5 measured steps and has 4, and 10 s of steps and has 7.8 s.'
    """
    missing = []
    if steps < ENOUGH_STEPS:
        missing.append(f"{ENOUGH_STEPS} measured steps and has {steps}")
    if seconds < ENOUGH_SECONDS:
        missing.append(f"{ENOUGH_SECONDS:.0f} s of steps and has {math.floor(10 * seconds) / 10:.1f} s")
    return f"No verdict: it needs {', and '.join(missing)}."


def _headline(summary: Summary) -> str:
    excluded = summary.steps - summary.included_steps
    names = [name for part, name in _EXCLUDING.items() if summary.wall_seconds.get(part)]
    why = ", ".join([*names, *(["profiled steps"] if summary.profiles else [])])
    left_out = f" (without {why})" if why else f" ({excluded:,} excluded)"
    left_out = left_out if excluded and summary.included_steps else ""
    lost = f", {summary.lost_steps:,} without a time" if summary.lost_steps else ""
    measured = f"{summary.included_steps:,}" if summary.included_steps else "none"
    pace = "" if summary.step_time is None else f": {duration(summary.step_time)} per step"
    return f"{plural(summary.steps, 'step')}, {measured} measured{left_out}{lost}{pace}"


def _account(summary: Summary) -> Iterable[str]:
    """The account begins with the trainer's first hook, because the time before it is unknown."""
    wall = sum(summary.wall_seconds.values())
    if wall <= 0:
        return
    shares = {name: f"{seconds / wall:.1%}" for name, seconds in summary.wall_seconds.items()}
    parts = [
        f"{_PARTS.get(name, name)} {duration(seconds)} ({shares[name]})"
        for name, seconds in summary.wall_seconds.items()
        if shares[name] != "0.0%"
    ]
    yield f"{duration(wall)} since measuring began: {joined(parts)}"


def _stages(summary: Summary) -> Iterable[str]:
    if summary.stage_seconds:
        yield "a measured step:"
    width = max([10, *[len(name) - len("_time") + 1 for name in summary.stage_seconds]])
    for name, seconds in summary.stage_seconds.items():
        share = seconds / summary.included_seconds if summary.included_seconds else None
        step = seconds / summary.included_steps if summary.included_steps else None
        stage = name.removesuffix("_time")
        yield f"{stage:<{width}}{duration(step):>10}{DASH if share is None else f'{share:.1%}':>8}"
    for part, seconds in summary.other_seconds.items() if summary.included_seconds and summary.stage_seconds else ():
        mean = duration(seconds / summary.included_steps)
        yield f"  {part:<10}{mean:>8}{seconds / summary.included_seconds:>8.1%}"


def _throughput(summary: Summary) -> Iterable[str]:
    seconds = summary.included_seconds
    amounts = {
        "samples/s": summary.included_samples,
        "tokens/s": summary.included_tokens,
        "useful tokens/s": summary.included_useful_tokens,
    }
    shown = {name: amount for name, amount in amounts.items() if amount and seconds}
    rates = "   ".join(f"{rate(amount / seconds)} {name}" for name, amount in shown.items())
    if rates:
        yield f"this process: {rates}"
    if seconds and summary.included_samples is None:
        yield "samples/s unknown: some batches don't show their samples, or were not seen"
    if seconds and summary.included_tokens is None:
        counted = summary.flops is not None and summary.flops.source is not None
        unseen = "; a FLOP count would also look for embeddings"
        seen = ", and no embedding that looks up tokens"
        yield f"tokens/s unknown: no `input_ids`{seen if counted else unseen}"


def _work(summary: Summary) -> Iterable[str]:
    flops = summary.flops or FlopsSummary()
    at_least = "≥ " if flops.lower_bound else ""
    executed_at_least = "≥ " if flops.lower_bound or flops.uncounted else ""
    if not flops.seconds or flops.model_flops is None or flops.hardware_flops is None:
        if flops.unknown is not None:
            yield f"TFLOPS and MFU unknown: {flops.unknown}"
        return
    model, hardware = [speed(amount / flops.seconds) for amount in (flops.model_flops, flops.hardware_flops)]
    kind = "recomputation" if flops.beside_model is None else flops.beside_model
    parts = [f"{at_least}{model} of the model", *[f"{executed_at_least}{hardware} including {kind}"] * bool(kind)]
    if flops.source is not None:
        parts.append(checked(flops.source, flops.checked_step, summary.step))
    if flops.coverage is not None:
        parts.append(f"{flops.coverage:.1%} of the weights covered")
    yield ", ".join(parts)
    if executed_at_least:
        yield f"≥: {'; '.join(_uncounted(flops))}"
    if flops.heaviest_modules:
        yield f"most FLOPs: {joined(f'{path} {percent(share)}' for path, share in flops.heaviest_modules)}"
    if flops.mfu is not None and flops.hfu is not None and flops.peak_flops_per_second is not None:
        kind = "measured peak" if flops.peak_measured else "peak"
        peak = f"{kind} {speed(flops.peak_flops_per_second)} ({flops.dtype})"
        yield f"MFU {at_least}{percent(flops.mfu)}, HFU {executed_at_least}{percent(flops.hfu)} of {peak}"
    elif flops.mfu_unknown is not None:
        yield f"MFU unknown: {flops.mfu_unknown}"
    if flops.unknown is not None:
        yield f"FLOPs {flops.unknown}"


def _uncounted(flops: FlopsSummary) -> Iterable[str]:
    names, coverage = flops.uncounted, flops.coverage
    if names:
        yield f"not counted: {few(names)}"
    if coverage is not None and coverage < ENOUGH_COVERED:
        yield f"{percent(1 - coverage)} of the weights were in no counted product"
    elif flops.source in {COPY, CLOSED_FORM}:
        yield "the estimate contains one forward of the model, and a step may do more"
    elif not names:
        yield "part of the step was not counted"


def _pauses(summary: Summary) -> str:
    gc = summary.gc
    if gc is None:
        return ""
    total = sum(gc.collections)
    by_generation = "/".join(str(number) for number in gc.collections)
    sentence = (
        f"{plural(total, 'garbage collection')} (young/middle/full {by_generation}) "
        f"took {duration(gc.seconds)}, the longest {duration(gc.longest)}"
    )
    if summary.stage_seconds.get("gc_time") == 0:
        sentence += ", none in a measured step"
    parts = [sentence if total else "no garbage collection ran"]
    if gc.scheduled_seconds:
        parts.append(f"{duration(gc.scheduled_seconds)} of it scheduled by the checklist")
    if gc.startup_seconds:
        parts.append(f"one full collection by the checklist took {duration(gc.startup_seconds)}")
    return "; ".join(parts)


def _applied(checklist: Sequence[Checklist]) -> Iterable[str]:
    parts = [f"{row.item} {row.status}" for row in checklist]
    if parts:
        yield f"checklist: {joined(parts)}"


def _stalls(summary: Summary) -> str:
    stalls = summary.stalls
    if stalls is None or not stalls.count:
        return ""
    return f"{plural(stalls.count, 'stall')}, {duration(stalls.seconds)} without a step"


def _global_batch(summary: Summary) -> str:
    memory = summary.memory
    if memory is None or memory.global_batch is None:
        return ""
    factors = (
        f"micro-batch {memory.micro_batch} x {memory.micro_batches} accumulated x {memory.data_parallel} data-parallel"
    )
    return f"global batch {memory.global_batch:,}: {factors}"


def _memory(summary: Summary) -> Iterable[str]:
    parts_gb = {} if summary.memory is None else summary.memory.parts_gb
    parts = [f"{name} {size(gb)}" for name, gb in parts_gb.items() if gb]
    return [f"memory, each part at its largest: {joined(parts)}"] if parts else ()


def _energy(summary: Summary) -> str:
    joules, per_token = summary.joules_per_step, summary.joules_per_token
    if joules is None:
        return ""
    token = "" if per_token is None else f", {energy(per_token)} per token"
    return f"energy of the whole device: {energy(joules)} per step{token}"
