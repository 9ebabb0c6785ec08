"""The part of a report about profiled steps: bars of the time, and tables of modules, operations and copies."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from perf_callbacks.kernel.records.profile_record import Profile
from perf_callbacks.kernel.settings.config import LONGEST_TEXT
from perf_callbacks.profiles.heaviest import MOST_HEAVIEST
from perf_callbacks.report import charts, module_times, profile_text, units
from perf_callbacks.report.history import Attempt, FitHistory, possible
from perf_callbacks.report.layout import clean
from perf_callbacks.report.tables import CODE, NUMBER, TEXT, Table
from perf_callbacks.report.units import DASH, duration, percent

MOST_PROFILES = 6

MOST_CLASSES = 7
"""Kernel classes with a part of a bar. Further ones share the part "other classes"."""

BARS = ("profile_time", "profile_classes")


def found(fit: FitHistory) -> list[tuple[int, Attempt, Profile]]:
    """With rank and attempt. Of more than `MOST_PROFILES`, leave out the first ones."""
    return [(rank, attempt, profile) for rank, attempt in fit.attempts for profile in attempt.records(Profile)][
        -MOST_PROFILES:
    ]


def parts(fit: FitHistory) -> list[dict[str, Any]] | None:
    return [_part(fit, *row) for row in found(fit)] or None


def _part(fit: FitHistory, rank: int, attempt: Attempt, profile: Profile) -> dict[str, Any]:
    """Raise `ValueError` if the profile holds impossible values."""
    times = [*profile.idle_seconds.values(), *profile.class_seconds.values(), *profile.sync_seconds.values()]
    times += [*(profile.module_seconds or {}).values(), *(profile.module_backward_seconds or {}).values()]
    times += [row.seconds for row in profile.operations] + [row.seconds for row in profile.copies]
    flops = [operation.flops for operation in profile.operations if operation.flops is not None]
    if not all(map(possible, [profile.span_seconds, profile.busy_seconds, *times, *flops, profile.flops or 0.0])):
        raise ValueError("impossible times")
    tables = {
        "profiled_modules": _modules(fit, attempt, profile),
        "operations": _operations(profile),
        "copies": _copies(profile),
        "waits": _waits(profile),
    }
    title = profile_text.title(rank, profile)
    return {
        "title": title[0].upper() + title[1:],
        "text": profile_text.sentences(profile),
        "trace": None if profile.trace is None else clean(profile.trace, LONGEST_TEXT),
        "profile_time": _time(profile),
        "profile_classes": _classes(profile),
        "tables": {name: asdict(table) for name, table in tables.items() if table is not None},
    }


def _time(profile: Profile) -> dict[str, Any] | None:
    exposed = profile.exposed_communication_seconds
    labels = profile_text.labels(profile)
    pieces = [("busy" if exposed <= 0 else "computing", max(0.0, profile.busy_seconds - exposed))]
    pieces += [("exposed communication", exposed)] if exposed > 0 else []
    pieces += [(labels.get(cause, clean(cause)), seconds) for cause, seconds in profile.idle_seconds.items()]
    return _bar(f"{duration(profile.span_seconds)} in all", pieces, profile.span_seconds)


def _classes(profile: Profile) -> dict[str, Any] | None:
    pieces = [(clean(kind), seconds) for kind, seconds in profile.class_seconds.items()]
    rest = pieces[MOST_CLASSES:]
    if len(rest) > 1:
        pieces = [*pieces[:MOST_CLASSES], ("other classes", sum([seconds for _, seconds in rest]))]
    return _bar(f"{duration(profile.busy_seconds)} busy", pieces, profile.busy_seconds)


def _bar(title: str, pieces: Iterable[tuple[str, float]], whole: float) -> dict[str, Any] | None:
    if whole <= 0:
        return None
    shown = [(name, seconds, f"{duration(seconds)}, {percent(seconds / whole)}") for name, seconds in pieces]
    return charts.bar(title, [part for part in shown if part[1] > 0], whole)


def _operations(profile: Profile) -> Table | None:
    busy = profile.busy_seconds
    rows = []
    for operation in profile.operations:
        work = (DASH, DASH) if profile.flops else ("", "")
        if profile.flops and operation.flops is not None:
            work = (units.count(operation.flops), percent(operation.flops / profile.flops))
        cells = (
            clean(operation.name, LONGEST_TEXT),
            clean(operation.shapes or "", LONGEST_TEXT),
            clean(operation.kind),
        )
        rows.append(
            (*cells, f"{operation.calls:,}", duration(operation.seconds), _share(operation.seconds, busy), *work)
        )
    columns = [("operation", CODE), ("shapes", CODE), ("class", TEXT), ("calls", NUMBER), ("time", NUMBER)]
    columns += [("share", NUMBER), ("FLOPs", NUMBER), ("share of FLOPs", NUMBER)]
    note = f"Share: of the busy time. {profile.kernels:,} {'operations' if profile.timeline == 'cpu' else 'kernels'}."
    if profile.flops:
        note += f" {units.count(profile.flops)} FLOPs in all, by the shapes in the trace."
    return Table("Heaviest operations", columns, rows, note) if rows else None


def _modules(fit: FitHistory, attempt: Attempt, profile: Profile) -> Table | None:
    peak = module_times.peak(attempt, [other for _, other in fit.attempts])
    rows = module_times.table(module_times.of_run(profile, attempt, peak), profile)
    if not rows:
        return None
    headings, *cells = rows
    rest = f" The ten heaviest of {len(cells)} rows." if len(cells) > MOST_HEAVIEST else ""
    columns = [(heading, NUMBER if place else CODE) for place, heading in enumerate(headings)]
    shown = [(clean(name, LONGEST_TEXT), *others) for name, *others in cells[:MOST_HEAVIEST]]
    return Table("Time by module", columns, shown, f"Share: of the busy time.{rest}")


def _copies(profile: Profile) -> Table | None:
    rows = [
        (
            clean(copy.operation, LONGEST_TEXT),
            clean(copy.kind),
            clean(copy.line or "", LONGEST_TEXT),
            f"{copy.calls:,}",
            duration(copy.seconds),
            _share(copy.seconds, profile.busy_seconds),
        )
        for copy in profile_text.large_copies(profile)
    ]
    columns = [("copy", CODE), ("kind", TEXT), ("line", CODE), ("calls", NUMBER), ("time", NUMBER), ("share", NUMBER)]
    return Table("Copies", columns, rows, "Share: of the busy time.") if rows else None


def _waits(profile: Profile) -> Table | None:
    rows: Sequence[tuple[str, ...]] = [
        (clean(line, LONGEST_TEXT), duration(seconds), _share(seconds, profile.span_seconds))
        for line, seconds in profile.sync_seconds.items()
        if seconds >= profile_text.LEAST_ROW * profile.span_seconds
    ]
    columns = [("place", CODE), ("time", NUMBER), ("share", NUMBER)]
    return Table("Idle time after waits for the device", columns, rows, "Share: of all time.") if rows else None


def _share(seconds: float, whole: float) -> str:
    return percent(seconds / whole if whole > 0 else None)
