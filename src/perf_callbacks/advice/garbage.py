"""Rule `gc`: the program makes much garbage, or collects garbage by calls of its own."""

from perf_callbacks.advice.facts import Facts, MachineFacts, Measured, finding
from perf_callbacks.kernel.records.fit_records import Finding


def garbage(_machine: MachineFacts, facts: Facts, measured: Measured | None) -> Finding | None:
    """Name the time of garbage collection, by the program's calls and by the schedule of the checklist."""
    found = None if measured is None else measured.summary.gc
    if measured is None or not measured.known or found is None or not found.seconds:
        return None
    seconds, count, scheduled = found.seconds, sum(found.collections), found.scheduled_seconds or 0.0
    evidence = f"Garbage collection took {seconds / measured.seconds:.0%} of the run ({count:,} collections)"
    if scheduled > seconds / 2:
        remedy = "breaking reference cycles: gc.set_debug(gc.DEBUG_SAVEALL) shows which objects are in gc.garbage"
    elif facts.collect_seconds > seconds / 2:
        remedy = "removing calls of gc.collect()"
        remedy += f", first at {facts.collect_line}" if facts.collect_line else ""
    elif facts.gc == "sync":
        return None  # these collections came before the schedule
    else:
        remedy = 'PerfConfig(gc="sync")'
    return finding("gc", seconds / measured.seconds, evidence, remedy)
