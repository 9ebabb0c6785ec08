"""Figures of a run in Prometheus's text format, for the textfile collector of node_exporter."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import get_args

from perf_callbacks.kernel.records.fit_records import Summary
from perf_callbacks.kernel.records.journal_ends import FitEnds
from perf_callbacks.kernel.settings.config import LONGEST_TEXT
from perf_callbacks.report.history import finite
from perf_callbacks.report.layout import clean
from perf_callbacks.report.rank_pace import RankPace
from perf_callbacks.report.recorded_run import RecordedRun, State, hangs, sign, stalled_seconds

PREFIX = "perf_callbacks_"

Labels = Mapping[str, str]

Samples = Sequence[tuple[Labels, float | None]]

MetricFamily = tuple[str, str, Samples]
"""Name, help and samples. The name of a counter ends in `_total`; all others are gauges."""


def render(run: RecordedRun, paces: Sequence[RankPace]) -> str:
    """Unknown values, and metrics without any known value, are left out.

    Each sample has the attempt as a label. A resumed run may begin at an earlier step, but a counter must not decrease.
    """
    own = {"run": run.lead.run.run_id, "attempt": str(run.lead.run.attempt)}
    lines: list[str] = []
    for name, text, samples in _families(run, paces):
        shown: dict[str, float] = {}
        for labels, value in samples:
            number = finite(value)
            if number is not None:  # Prometheus refuses two samples with the same labels
                text_of_labels = ",".join(
                    [f'{label}="{_escaped(words)}"' for label, words in {**own, **labels}.items()]
                )
                shown.setdefault(text_of_labels, float(number))
        if shown:
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP {PREFIX}{name} {text}", f"# TYPE {PREFIX}{name} {kind}"]
            lines += [f"{PREFIX}{name}{{{labels}}} {value!r}" for labels, value in shown.items()]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    r"""Return a text that is safe as the value of a label.

    >>> print(_escaped('a"b' + chr(92) + chr(10)))
    a\"b\\?
    """
    return clean(text, LONGEST_TEXT).replace("\\", "\\\\").replace('"', '\\"')


def _families(run: RecordedRun, paces: Sequence[RankPace]) -> Iterator[MetricFamily]:
    """Without the current metrics if the run gives no sign of life."""
    lives = run.state in {"running", "hangs"}
    yield "up", "1 if the run gave a sign of life within 30 seconds and has not ended.", [({}, lives)]
    states = [({"state": state}, float(state == run.state)) for state in get_args(State)]
    yield "run_state", "1 for the state of the run.", states
    yield "run_info", "Always 1. The labels say what runs where.", [(_about(run), 1.0)]
    yield "start_timestamp_seconds", "Unix time of the start of the attempt.", [({}, run.lead.run.started_unix)]
    yield (
        "last_sign_of_life_timestamp_seconds",
        "Unix time of the last write to the journal of a rank or to the summary beside the journal.",
        [(_rank(ends), sign(ends)) for ends in run.ranks],
    )
    if lives:
        yield from _present(run, paces)
    yield from _totals(run, paces)
    yield from _stragglers(run)


def _about(run: RecordedRun) -> Labels:
    record = run.lead.run
    texts = {"program": record.program, "model": record.model, "host": record.host, "job_id": record.job_id}
    labels = {name: text for name, text in texts.items() if text}
    return {**labels, "device": record.device, "world_size": str(record.world_size)}


def _rank(ends: FitEnds) -> Labels:
    return {"rank": str(ends.run.rank)}


def _present(run: RecordedRun, paces: Sequence[RankPace]) -> Iterator[MetricFamily]:
    """Current metrics of each rank that gives signs of life and has not ended."""
    alive = [ends for ends in run.ranks if ends.final is None and run.lives(ends)]
    ranks = {ends.run.rank for ends in alive}
    by_rank = [({"rank": str(pace.rank)}, pace) for pace in paces if pace.rank in ranks]
    yield (
        "step_time_seconds",
        "Mean duration of the last optimizer steps on disk, up to 256.",
        [(labels, pace.step_seconds) for labels, pace in by_rank],
    )
    yield (
        "stage_time_seconds",
        "Mean time of a stage in the last optimizer steps on disk, up to 256.",
        _by_part("stage", [(labels, pace.stages) for labels, pace in by_rank]),
    )
    yield (
        "stall_seconds",
        "Seconds for which no step has ended, in a stall under way that was reported. 0 without a stall.",
        [(_rank(ends), _stalled(ends)) for ends in alive],
    )


def _stalled(ends: FitEnds) -> float | None:
    """Seconds without a step in the current stall, or 0; None: no stall detection."""
    seconds = stalled_seconds(ends) if hangs(ends) else None
    if seconds is not None:
        return seconds
    return None if ends.so_far is not None and ends.so_far.stalls is None else 0.0


def _totals(run: RecordedRun, paces: Sequence[RankPace]) -> Iterator[MetricFamily]:
    summaries = [(_rank(ends), summary) for ends in run.ranks if (summary := ends.final or ends.so_far) is not None]

    def each(value: Callable[[Summary], float | None]) -> Samples:
        return [(labels, value(summary)) for labels, summary in summaries]

    steps = [({"rank": str(pace.rank)}, float(min(pace.step, 10**15))) for pace in paces]
    yield "steps_total", "Optimizer steps by the count of the trainer.", steps
    yield "samples_total", "Samples of all attempts, of this rank.", each(lambda summary: summary.total_samples)
    yield "tokens_total", "Tokens of all attempts, of this rank.", each(lambda summary: summary.total_tokens)
    yield (
        "stage_seconds_total",
        "Seconds of each stage in the measured steps. Stage data: waiting for data.",
        _by_part("stage", [(labels, summary.stage_seconds) for labels, summary in summaries]),
    )
    yield (
        "wall_seconds_total",
        "Seconds of each part of the wall time of the attempt.",
        _by_part("part", [(labels, summary.wall_seconds) for labels, summary in summaries]),
    )
    over = "over the attempt, from 0 to 1. A lower bound where perf_callbacks_mfu_is_lower_bound is 1."
    yield "mfu_ratio", f"Model FLOPs utilization {over}", each(lambda summary: summary.mfu)
    yield "hfu_ratio", f"Hardware FLOPs utilization {over}", each(lambda summary: summary.hfu)
    bounds = each(lambda summary: summary.flops.lower_bound if summary.flops else None)
    yield "mfu_is_lower_bound", "1 if a step has more FLOPs than were counted.", bounds
    pauses = each(lambda summary: summary.gc.seconds if summary.gc else None)
    yield "gc_seconds_total", "Seconds of all garbage collections.", pauses
    collections = each(lambda summary: sum(summary.gc.collections) if summary.gc else None)
    yield "gc_collections_total", "Garbage collections.", collections
    yield (
        "stalls_total",
        "Stalls that were reported.",
        each(lambda summary: summary.stalls.count if summary.stalls else None),
    )
    seconds = each(lambda summary: summary.stalls.seconds if summary.stalls else None)
    yield "stalled_seconds_total", "Seconds without a step in these stalls.", seconds


def _by_part(label: str, amounts: Iterable[tuple[Labels, Mapping[str, float]]]) -> Samples:
    return [
        ({**labels, label: clean(name.removesuffix("_time"))}, seconds)
        for labels, parts in amounts
        for name, seconds in parts.items()
    ]


def _stragglers(run: RecordedRun) -> Iterator[MetricFamily]:
    summary = run.lead.final or run.lead.so_far
    stragglers = None if summary is None else summary.stragglers
    if stragglers is None or not stragglers.steps:
        return
    causes = [({"cause": clean(cause)}, seconds) for cause, seconds in stragglers.seconds_by_cause.items()]
    yield "straggler_lost_seconds_total", "Seconds that the job lost to slow ranks.", causes
    worst: dict[tuple[int, str], float] = {}
    for ranks, cause, seconds, _ in stragglers.named():
        for rank in ranks:
            worst[rank, clean(cause)] = worst.get((rank, clean(cause)), 0.0) + seconds
    yield (
        "straggler_rank_lost_seconds",
        "Seconds that the job lost to this rank, alone or in a set of ranks. Only the costliest ranks are listed.",
        [({"rank": str(rank), "cause": cause}, seconds) for (rank, cause), seconds in worst.items()],
    )
    if stragglers.slowdown is not None:
        text = "Duration of a step, divided by its duration with healthy ranks and even work."
        yield "straggler_slowdown_ratio", text, [({}, stragglers.slowdown)]
