"""Tables of a report: findings, FLOP counts, slow ranks and steps, stalls, checklist and environment of a fit."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from math import isnan
from statistics import median

from perf_callbacks.flops.calculator.product_shapes import misaligned
from perf_callbacks.kernel.process import packages
from perf_callbacks.kernel.records.fit_records import Checklist, Finding, Gc, Span, Summary
from perf_callbacks.kernel.records.flops_record import Flops
from perf_callbacks.kernel.records.rank_records import Stall
from perf_callbacks.kernel.settings.config import LONGEST_RECORDED
from perf_callbacks.kernel.units import GB
from perf_callbacks.report import units
from perf_callbacks.report.history import FitHistory
from perf_callbacks.report.series import OWN, STAGES, WAITING, Outlier, kept
from perf_callbacks.report.units import DASH, duration, percent, rate, size, when
from perf_callbacks.stragglers.text import NAMES, REMEDIES, rank_numbers, verdict_remedy

TEXT, NUMBER, CODE, LABEL = "text", "number", "code", "label"
"""Kinds of columns. The page never breaks a `LABEL` into several lines."""

MOST_ROWS = 50

MOST_SLOW = 12


@dataclass(frozen=True, slots=True)
class Table:
    """A table, and a sentence that explains it."""

    title: str
    columns: Sequence[tuple[str, str]]
    rows: Sequence[Sequence[str]]
    note: str = ""


def findings(fit: FitHistory) -> Table | None:
    summary = fit.hang or fit.summary
    causes: Sequence[Finding] = summary.findings if summary is not None else fit.first[-1].records(Finding)
    rows = [
        (finding.cause, DASH if finding.share is None else f"{finding.share:.0%}", finding.evidence, finding.remedy)
        for finding in causes
    ]
    columns = [("cause", TEXT), ("could save", NUMBER), ("evidence", TEXT), ("try", CODE)]
    note = "Could save: at most this share of the wall time after startup."
    return Table("What limits the run", columns, rows, note) if rows else None


def ranks(usual: Mapping[int, Mapping[str, float]]) -> Table | None:
    """Of more than `MOST_ROWS` ranks, only the slowest ones."""
    if len(usual) == 1:
        return None
    names = [name for name in ("step_time", *STAGES) if any(name in medians for medians in usual.values())]
    middle = {name: median([medians[name] for medians in usual.values() if name in medians]) for name in names}

    def excess(rank: int) -> float:
        return max((usual[rank][name] - middle[name] for name in OWN if name in usual[rank]), default=0.0)

    shown, note = sorted(usual), ""
    if len(usual) > MOST_ROWS:
        shown = nlargest(MOST_ROWS, shown, key=excess)
        note = f"The ranks that exceed the median most outside of backward; {len(usual) - len(shown):,} are not shown."
    rows = [(str(rank), *[duration(usual[rank].get(name)) for name in names]) for rank in shown]
    columns = [("rank", NUMBER), *[(name.removesuffix("_time"), NUMBER) for name in names]]
    return Table("Median times by rank", columns, rows, note)


def slow_steps(fit: FitHistory, slow: Sequence[Outlier], usual: Mapping[int, Mapping[str, float]]) -> Table | None:
    """`usual` are the medians by rank."""
    slowest: dict[int, Outlier] = {}
    for step in sorted(slow, key=lambda step: step.seconds, reverse=True):
        slowest.setdefault(step.step, step)
    rows = [_slow_step(fit, step, usual) for step in [*slowest.values()][:MOST_SLOW]]
    columns = [
        ("step", NUMBER),
        ("time", NUMBER),
        ("of median", NUMBER),
        ("rank", NUMBER),
        ("where", TEXT),
        ("remarks", TEXT),
    ]
    note = (
        "Where: the stage of a rank that exceeded its median most. A backward that only waits for a late rank is not "
        "the cause."
    )
    return Table("Slowest steps", columns, rows, note) if rows else None


def _slow_step(fit: FitHistory, slowest: Outlier, usual: Mapping[int, Mapping[str, float]]) -> tuple[str, ...]:
    excesses: list[tuple[float, int, str]] = []
    gc_seconds = 0.0
    for rank, attempt, lower, upper in kept(fit):
        place = bisect_left(attempt.step, slowest.step, lower, upper)
        if place == upper or attempt.step[place] != slowest.step:
            continue
        excess = {name: attempt.columns[name][place] - usual[rank].get(name, 0.0) for name in STAGES}
        excesses += [(seconds, rank, name) for name, seconds in excess.items() if not isnan(seconds)]
        gc_seconds = max(
            gc_seconds, sum([pause.seconds for pause in attempt.records(Gc) if pause.step == slowest.step])
        )
    stages = STAGES if len(fit.ranks) == 1 else OWN
    cause = max((part for part in excesses if part[2] in stages), default=None)
    waited = max((part for part in excesses if part[2] in WAITING), default=None)
    if cause is None or (waited is not None and cause[0] < waited[0] / 2):
        cause = waited  # if no rank came late, a backward that is slow on all ranks is the cause itself
    usual_seconds = usual[slowest.rank].get("step_time")
    remarks = [f"garbage collection {duration(gc_seconds)}" if gc_seconds else "", slowest.reason or ""]
    return (
        f"{slowest.step:,}",
        duration(slowest.seconds),
        f"{rate(slowest.seconds / usual_seconds if usual_seconds else 1.0)}x",
        str(slowest.rank if cause is None else cause[1]),
        DASH if cause is None else f"{cause[2].removesuffix('_time')} +{duration(max(0.0, cause[0]))}",
        "; ".join(filter(None, remarks)),
    )


def products(count: Flops, *, tensor_cores: bool) -> Table | None:
    """The heaviest ones, with advice on their shapes."""
    rows = []
    for operation, shapes, dtype, flops in count.products:
        advice = "; ".join(
            f"{size.size:,} is no multiple of 8; {size.better:,} is"
            for size in misaligned([(operation, shapes, dtype, flops)])
        )
        share = flops / count.hardware_flops if count.hardware_flops > 0 else None
        cells = [operation.removeprefix("aten::"), shapes, dtype, units.count(flops), percent(share)]
        rows.append([*cells, advice or "fits"] if tensor_cores else cells)
    columns = [("operation", CODE), ("shapes", CODE), ("format", TEXT), ("FLOPs", NUMBER), ("share", NUMBER)]
    if tensor_cores:
        columns.append(("shape advice", TEXT))
    advice = (
        "Tensor cores need sizes that are multiples of 8, and work best with multiples of 64."
        if tensor_cores
        else "Shape advice is for GPUs with tensor cores."
    )
    note = f"From step {count.step:,}. Share: of all executed FLOPs. {advice}"
    return Table("Heaviest products", columns, rows, note) if rows else None


def uncounted(count: Flops, summary: Summary | None) -> Table:
    rows = [
        *[("not counted", name, f"{calls:,} calls") for name, calls in count.uncounted.items()],
        *[("error in counting", name, f"{calls:,} calls") for name, calls in count.errors.items()],
        *[("large copy", f"{name} {shape}", size(count_of_bytes / GB)) for name, shape, count_of_bytes in count.copies],
        *[("host waits for the device", line, f"{times:,} times") for line, times in count.reads.items()],
        *[("values read by Python", line, f"{times:,} values") for line, times in count.values_read.items()],
    ]
    flops = None if summary is None else summary.flops
    unknown = [] if flops is None else [flops.unknown, flops.mfu_unknown]
    rows += [("unknown", reason, "") for reason in unknown if reason]
    covered = "" if count.coverage is None else f"{count.coverage:.1%} of the weights were seen in counted products. "
    low = "FLOPs and MFU are lower bounds." if count.lower_bound else ""
    columns = [("what", TEXT), ("where", CODE), ("how much", NUMBER)]
    title = "Uncounted work, unknown figures, copies and reads" if rows else "Uncounted work"
    nothing = "" if rows else "Nothing was left out of the count. "
    return Table(title, columns, rows[:MOST_ROWS], f"{nothing}{covered}{low}".strip())


def phases(count: Flops) -> Table | None:
    executed = sum(count.by_phase.values())
    rows = [
        (name.replace("_", " "), units.count(flops), percent(flops / executed))
        for name, flops in count.by_phase.items()
    ]
    source = f"Source: {count.source}, step {count.step:,}."
    columns = [("phase", TEXT), ("FLOPs", NUMBER), ("share", NUMBER)]
    return Table("FLOPs of a step", columns, rows, source) if executed > 0 else None


def checklist(fit: FitHistory) -> Table | None:
    """The last record of each item counts."""
    last = {item.item: item for item in fit.first[-1].records(Checklist)}
    rows = [
        (
            name,
            item.status,
            " → ".join(part for part in (item.before, item.after) if part) or DASH,
            item.why or "",
        )
        for name, item in last.items()
    ]
    columns = [("item", TEXT), ("status", TEXT), ("state", TEXT), ("why", TEXT)]
    note = "`perf-callbacks try` measures what each item gains."
    return Table("Startup checklist", columns, rows, note) if rows else None


def stragglers(summary: Summary) -> Table | None:
    stragglers, remedy = summary.stragglers, verdict_remedy(summary.findings)
    if stragglers is None or not stragglers.steps:
        return None
    several = stragglers.slowdown is not None
    rows = [
        (
            rank_numbers(ranks),
            NAMES.get(cause, cause),
            duration(seconds),
            f"{steps:,}",
            ((remedy if place == 0 else "") or REMEDIES.get(cause, "")) if several else "",
        )
        for place, (ranks, cause, seconds, steps) in enumerate(stragglers.named())
    ]
    parts = [f"In {stragglers.steps:,} compared steps, {duration(stragglers.seconds)} in all."]
    if stragglers.slowdown is not None:
        parts.append(f"A step takes {rate(stragglers.slowdown)} times as long as with healthy ranks and even work.")
    for what, seconds in (
        ("Uneven batches", stragglers.uneven_batches_seconds),
        ("Uneven stages of the pipeline", stragglers.uneven_stages_seconds),
        ("Chance", stragglers.chance_seconds),
    ):
        if seconds:
            parts.append(f"{what} cost {duration(seconds)}.")
    if stragglers.backward_waiting is not None:
        parts.append(f"At most {stragglers.backward_waiting:.0%} of rank 0's backward is waiting for other ranks.")
    columns = [("rank", NUMBER), ("cause", TEXT), ("cost", NUMBER), ("steps", NUMBER), ("try", TEXT)]
    title = "Stragglers" if several else "Steps that took unusually long"
    return Table(title, columns, rows[:MOST_ROWS], " ".join(parts)) if rows else None


def stalls(fit: FitHistory) -> Table | None:
    rows = [
        (
            f"{stall.step:,}",
            str(stall.rank),
            stall.stage,
            duration(stalled_seconds(fit, stall)),
            stall.stack[-1] if stall.stack else "",
        )
        for stall in distinct_stalls(fit)
    ]
    columns = [("after step", NUMBER), ("rank", NUMBER), ("stage", TEXT), ("duration", NUMBER), ("at", CODE)]
    return Table("Stalls", columns, rows[:MOST_ROWS]) if rows else None


def distinct_stalls(fit: FitHistory) -> list[Stall]:
    """By step. Rank 0 also records other ranks' stalls, so drop duplicates."""
    distinct = {
        (stall.step, stall.rank, stall.stage): stall for _, attempt in fit.attempts for stall in attempt.records(Stall)
    }
    return sorted(distinct.values(), key=lambda stall: (stall.step, stall.rank))


def stalled_seconds(fit: FitHistory, stall: Stall) -> float:
    """Of the step, evaluation or checkpoint in which a rank stalled.

    If the journal doesn't show an end, it is the time of the rank's last journal record. If the journal of the rank is
    missing, return the time that had passed when the stall was noticed.
    """
    for attempt in reversed(fit.ranks.get(stall.rank, [])):
        noticed = [entry.t for entry in attempt.entries if entry.record == stall]
        if not noticed:
            continue
        for span in attempt.records(Span):
            if (span.kind, span.step) == (stall.stage, stall.step):
                return float(span.seconds)
        if attempt.step and attempt.step[-1] > stall.step:
            seconds: float = attempt.columns["step_time"][bisect_right(attempt.step, stall.step)]
            return stall.since_seconds if isnan(seconds) else max(seconds, stall.since_seconds)
        return stall.since_seconds + max(0.0, attempt.seconds - noticed[-1])
    return stall.since_seconds


def environment(fit: FitHistory) -> Table:
    run = fit.run
    facts = {
        "program": run.program,
        "command line": run.command_line,
        "directory": run.directory,
        "host": run.host,
        "job": run.job_id,
        "model": run.model,
        "parameters": None if run.parameters is None else f"{run.parameters:,}",
        "samples per batch": run.batch,
    }
    rows = [
        *[(name, _value(value), "") for name, value in facts.items() if value is not None],
        (f"start of attempt {run.attempt}", when(run.started_unix), ""),
        *[(name, version, "") for name, version in run.versions.items() if name in packages.NAMED],
    ]
    others = [f"{name} {version}" for name, version in run.versions.items() if name not in packages.NAMED]
    if others:
        rows.append(("other packages", _value(", ".join(others)), ""))
    for name, value in run.config.items():
        origin = "environment" if name in run.from_env else run.from_file.get(name, "")
        rows.append((name, _value(value), origin))
    return Table("Run, versions and settings", [("name", TEXT), ("value", CODE), ("set by", TEXT)], rows)


def _value(value: object) -> str:
    return re.sub(r"\s+", " ", str(value))[:LONGEST_RECORDED]
