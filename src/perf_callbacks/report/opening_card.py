"""The card at the start of training and the card of `perf-callbacks check`, as text."""

from collections.abc import Iterable, Mapping, Sequence

from perf_callbacks.kernel.records.fit_records import APPLIED, Checklist, Finding, Run
from perf_callbacks.kernel.settings.config import printable
from perf_callbacks.report.layout import COLUMNS, INDENT, aligned, card, joined, wrapped

TIMELINES = {"host": "host clock", "device": "device events"}

MOST_ADVICE = 3


def opening(
    run: Run,
    *,
    journal: object | None,
    checklist: Sequence[Checklist] = (),
    findings: Sequence[Finding] = (),
    columns: int = COLUMNS,
) -> str:
    """Say what is measured, with the checklist and advice that needs no measurement.

    >>> print(opening(
    ...     Run(run_id="a", attempt=2, step=40, rank=0, world_size=1, device="cpu", timeline="host", door="loop",
    ...         versions={"perf_callbacks": "1.0"}, config={"gc": "off"}, from_env=("gc",), started_unix=0.0),
    ...     journal=None,
    ... ))
    perf_callbacks 1.0: step time, stages and throughput on cpu (host clock),
        garbage collection not timed, attempt 2 from step 40,
        set by environment: gc, no journal
    """
    several = f"{run.devices} devices of type " if run.devices > 1 else ""
    stages = "step time, stages and throughput" if run.unstaged is None else "step time and throughput"
    measured = f"{stages} on {several}{run.device}"
    parts = [
        f"no stages: {run.unstaged}" if run.unstaged is not None else "",
        "stages of the first device" if several and run.timeline == "device" else "",
        "garbage collection timed" if run.config["gc"] != "off" else "garbage collection not timed",
        f"rank {run.rank} of {run.world_size}" if run.world_size > 1 else "",
        f"attempt {run.attempt} from step {run.step}" if run.attempt > 1 else "",
        "set by environment: " + ", ".join(run.from_env) if run.from_env else "",
        *_files(run.from_file),
        f"journal {printable(str(journal))}" if journal else "no journal",
    ]
    version = run.versions.get("perf_callbacks", "")
    first = f"perf_callbacks {version}: {measured} ({TIMELINES[run.timeline]}), {joined(filter(None, parts))}"
    return card([first, *_items(checklist), *_advice(findings[:MOST_ADVICE])], columns)


def _files(origins: Mapping[str, str]) -> Iterable[str]:
    """The settings of each file. Their line numbers are only in the journal."""
    files = {name: place.partition(", line ")[0] for name, place in origins.items()}
    for file in dict.fromkeys(files.values()):
        yield f"set by {file}: " + ", ".join(name for name in files if files[name] == file)


def check(
    device: str,
    checklist: Sequence[Checklist],
    peak: str,
    findings: Sequence[Finding] = (),
    columns: int = COLUMNS,
) -> str:
    """Render the checklist and the advice for a machine on which no training runs yet.

    >>> print(check("cpu", [Checklist(item="gc", status="skipped", before="automatic", why="gc=observe")], "No peak."))
    Training on cpu would begin with
      gc  skipped  automatic; gc=observe
    No peak.
    """
    items = [*_items(checklist)] or ["the checklist is turned off"]
    items += _advice(findings)
    begin = card([f"Training on {device} would begin with", *items], columns)
    return "\n".join([begin, *wrapped(peak, indent="    ", width=columns - INDENT)])


def _items(rows: Sequence[Checklist]) -> Iterable[str]:
    cells = []
    for row in rows:
        change = " -> ".join(part for part in (row.before, row.after) if part)
        details = "; ".join(part for part in (change, None if row.status == APPLIED else row.why) if part)
        cells.append((row.item, row.status, details))
    return aligned(cells)


def _advice(findings: Sequence[Finding]) -> list[str]:
    return [f"advice: {finding.evidence}; try {finding.remedy}" for finding in findings]
