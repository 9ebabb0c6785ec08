"""A profile in words and tables."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from perf_callbacks.kernel.records.module_records import ITSELF
from perf_callbacks.kernel.records.profile_record import Profile, ProfiledCopy, ProfiledOperation
from perf_callbacks.kernel.records.shares import WORTH
from perf_callbacks.report.layout import COLUMNS, aligned, clean, ends, joined, wrapped
from perf_callbacks.report.units import DASH, count, duration

LEAST_ROW = 0.001
"""Smallest share of the time of copies and waits in a table."""

_CAUSES = {
    "data": "because the program waited for the DataLoader",
    "communication": "because the CPU was in a collective",
    "sync": "because the CPU had stopped to wait for the device",
    "host": "because the CPU was still running Python or launching kernels",
    "device": "between kernels that were already launched",
    "unknown": "for reasons that the trace does not show",
}

_CPU_CAUSES = {
    "data": "while the program waited for the DataLoader",
    "communication": "while the program was in a collective",
    "host": "while the program ran Python or slept",
}

_LABELS = {
    "data": "waiting for the DataLoader",
    "communication": "CPU was in a collective",
    "sync": "CPU had waited for the device",
    "host": "CPU ran Python or launched kernels",
    "device": "gaps between launched kernels",
    "unknown": "not shown by the trace",
}

_CPU_LABELS = {"host": "Python or sleep", "communication": "in a collective"}

_ROWS = {
    "contraction": "contraction: matrix products, convolutions",
    "indexing": "indexing: embeddings, gather, sort",
    "other": "other: pooling, unknown names",
}

_CLASSES = {
    "contraction": "matrix products and convolutions",
    "elementwise": "element-wise operations",
    "copy": "copies",
    "communication": "collectives",
    "optimizer": "the optimizer",
    "reduction": "reductions such as sums",
    "other": "other operations",
}


_HeavyRow = tuple[ProfiledOperation | ProfiledCopy, str, str | None]


def of_run(rank: int, profile: Profile, columns: int = COLUMNS, modules: Sequence[Sequence[str]] = ()) -> str:
    """`modules` holds the table of modules, with its headings first."""
    trace = "" if profile.trace is None else f": {clean(profile.trace)}"
    return f"{title(rank, profile)}{trace}\n{render(profile, columns, modules)}"


def title(rank: int, profile: Profile) -> str:
    """Name the rank and the steps of a profile.

    >>> title(1, Profile(timeline="cpu", steps=2, first_step=20, span_seconds=1.0, busy_seconds=1.0, idle_seconds={},
    ...     class_seconds={}, communication_seconds=0.0, exposed_communication_seconds=0.0, kernels=1, sync_seconds={}))
    'rank 1, steps 20 to 21'
    """
    steps = profile.steps or 0
    if profile.first_step is None or not steps:
        return f"rank {rank}"
    last = profile.first_step + steps - 1
    return f"rank {rank}, " + (f"step {last:,}" if steps == 1 else f"steps {profile.first_step:,} to {last:,}")


def labels(profile: Profile) -> Mapping[str, str]:
    return {**_LABELS, **_CPU_LABELS} if profile.timeline == "cpu" else _LABELS


def line(profile: Profile) -> str:
    first = "" if profile.first_step is None else f" from step {profile.first_step:,}"
    modules = profile.heaviest_modules()
    shares = [f"{path or ITSELF} {_part(time, profile.busy_seconds)}" for path, time in modules.items()]
    return f"profile{first}: {_busy(profile)}{f' Most time: {joined(map(clean, shares))}.' if shares else ''}"


def render(profile: Profile, columns: int = COLUMNS, modules: Sequence[Sequence[str]] = ()) -> str:
    parts = wrapped(sentences(profile), indent="", width=columns)
    for heading, lines in _tables(profile, columns, modules):
        parts += ["", heading, *lines]
    return "\n".join(parts)


def sentences(profile: Profile) -> str:
    texts = [_busy(profile), *_idle(profile), *_classes(profile), *_communication(profile)]
    if profile.timeline == "cpu":
        texts.append("The trace shows no GPU: these are the operations of the CPU.")
    if profile.devices > 1:
        texts.append(f"The trace shows {profile.devices} devices; these figures describe the busiest.")
    return " ".join(texts)


def _busy(profile: Profile) -> str:
    subject = "Operations ran" if profile.timeline == "cpu" else "The device was busy"
    if profile.device is not None:
        subject = subject.replace("The device", f"The device ({clean(profile.device)})")
    time = duration(profile.step_seconds)
    if profile.steps is None:
        span = f"the trace, which covers {duration(profile.span_seconds)} and marks no steps"
    else:
        span = f"1 step of {time}" if profile.steps == 1 else f"{profile.steps:,} steps, each {time}"
    return f"{subject} for {_part(profile.busy_seconds, profile.span_seconds)} of {span}."


def _idle(profile: Profile) -> Iterable[str]:
    shown = [item for item in profile.idle_seconds.items() if item[1] >= WORTH * profile.span_seconds]
    if not shown:
        return
    texts = _CPU_CAUSES if profile.timeline == "cpu" else _CAUSES
    causes = [f"for {_part(time, profile.span_seconds)} {texts.get(cause, clean(cause))}" for cause, time in shown]
    if profile.sync_seconds:
        place = clean(next(iter(profile.sync_seconds)))
        causes = [cause.replace(_CAUSES["sync"], f"{_CAUSES['sync']}, mostly in {place}") for cause in causes]
    yield f"{'No operation ran' if profile.timeline == 'cpu' else 'The device idled'} {_listed(causes)}."


def _classes(profile: Profile) -> Iterable[str]:
    most = [item for item in profile.class_seconds.items() if item[1] >= WORTH * profile.busy_seconds][:3]
    if most:
        shares = [f"{_CLASSES.get(kind, clean(kind))} ({_part(time, profile.busy_seconds)})" for kind, time in most]
        yield f"The busy time went to {_listed(shares)}."


def _communication(profile: Profile) -> Iterable[str]:
    if profile.communication_seconds > 0:
        exposed = _part(profile.exposed_communication_seconds, profile.span_seconds)
        running = _part(profile.communication_seconds, profile.span_seconds)
        yield f"Collectives ran for {running} of the time, {exposed} without computation beside them."


def _tables(profile: Profile, columns: int, modules: Sequence[Sequence[str]]) -> Iterable[tuple[str, Sequence[str]]]:
    span, busy = profile.span_seconds, profile.busy_seconds
    if profile.idle_seconds:
        names = labels(profile)
        causes = [(names.get(cause, clean(cause)), time) for cause, time in profile.idle_seconds.items()]
        yield "Idle time, by cause (share of all time)", _times(causes, span, columns)
    waits = [row for row in profile.sync_seconds.items() if row[1] >= LEAST_ROW * span]
    if waits:
        yield "Idle time after waits for the device, by line", _times(waits, span, columns)
    classes = [(_ROWS.get(kind, kind), time) for kind, time in profile.class_seconds.items()]
    yield "Busy time, by class (share of busy time)", _times(classes, busy, columns)
    rows: list[_HeavyRow] = [
        (operation, operation.name, _details(operation, profile.flops, columns)) for operation in profile.operations
    ]
    if rows:
        heads = ("operation", "class", "calls", "time", "share")
        yield "Heaviest operations (share of busy time)", _detailed(heads, rows, busy, columns)
    rows = [(copy, copy.operation, copy.line) for copy in large_copies(profile)]
    if rows:
        heads = ("copy", "kind", "calls", "time", "share")
        yield "Copies (share of busy time)", _detailed(heads, rows, busy, columns)
    if modules:
        note = "; MFU while the module was busy" if "MFU" in modules[0] else ""
        yield f"Modules (share of busy time{note})", _table(modules, columns, range(1, len(modules[0])), ends)


def large_copies(profile: Profile) -> list[ProfiledCopy]:
    return [copy for copy in profile.copies if copy.seconds >= LEAST_ROW * profile.busy_seconds]


def _details(operation: ProfiledOperation, flops: float | None, columns: int) -> str | None:
    work = ""
    if operation.flops is not None:
        work = f"{count(operation.flops)}FLOP" + (
            f" ({_percent(operation.flops, flops)} of all FLOPs)" if flops else ""
        )
    shapes = clean(operation.shapes or "", columns - 6 - len(work))
    return ", ".join([part for part in (shapes, work) if part]) or None


def _times(rows: Iterable[tuple[str, float]], whole: float, columns: int) -> list[str]:
    return _table([(name, duration(time), _percent(time, whole)) for name, time in rows], columns, {1, 2})


def _detailed(heads: tuple[str, ...], rows: Sequence[_HeavyRow], busy: float, columns: int) -> list[str]:
    table = [
        (name, clean(row.kind), f"{row.calls:,}", duration(row.seconds), _percent(row.seconds, busy))
        for row, name, _ in rows
    ]
    heading, *lines = _table([heads, *table], columns, {2, 3, 4})
    details = [[] if detail is None else [f"    {clean(detail, columns - 4)}"] for _, _, detail in rows]
    return [heading, *[text for line, below in zip(lines, details, strict=True) for text in (line, *below)]]


def _table(
    rows: Sequence[Sequence[str]], columns: int, right: Collection[int], cut: Callable[[str, int], str] = clean
) -> list[str]:
    """Cut the cells of the first column so that the table fits into `columns`."""
    widths = [max(map(len, column)) for column in zip(*[cells[1:] for cells in rows], strict=True)]
    width = max(10, columns - 2 - sum(widths) - 2 * len(widths))
    lines = [(cut(clean(cells[0], 999), width), *cells[1:]) for cells in rows]
    return [f"  {line}" for line in aligned(lines, right)]


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _part(time: float, whole: float) -> str:
    return f"{time / whole:.0%}" if whole > 0 else DASH


def _percent(time: float, whole: float) -> str:
    return f"{time / whole:.1%}" if whole > 0 else DASH
