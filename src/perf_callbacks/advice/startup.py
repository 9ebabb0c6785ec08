"""Rules `startup`: a large part of the run passes before the measured steps."""

from perf_callbacks.advice.facts import Facts, Measured, finding, timed
from perf_callbacks.kernel.engine.account import FIRST_STEP, FLOP_COUNTING, STARTUP
from perf_callbacks.kernel.records.fit_records import Finding
from perf_callbacks.kernel.records.shares import LARGE

CAUSE = "startup"

LEAST = 0.25
"""Least part of the run that is reported. In a run of a minute, a smaller part is usual."""

LONGER = "a longer run"

REMEDIES = {
    "data": "preparing the data set once, before training, and opening it quickly",
    "other": "moving this work out of the first step, or a longer run",
}


@timed
def startup(facts: Facts, measured: Measured) -> Finding | None:
    """Time until the callback was set up, as a share of all wall time with the startup."""
    wall = measured.summary.wall_seconds
    seconds = wall.get(STARTUP, 0.0)
    share = seconds / sum(wall.values())
    if share < LEAST:
        return None
    did = "the setup of the callback, which waits for other ranks, if there are any"
    remedy = f"{LONGER}, or ranks that start together"
    if facts.integration == "lightning":
        did = "the hooks before training, the sanity check, and the setup of the callback"
        sanity = facts.option("num_sanity_val_steps", 0)
        remedy = f"{sanity}, or {LONGER}" if sanity else LONGER
    return finding(CAUSE, share, f"Startup took {share:.0%} of all time ({seconds:,.3g} s): {did}", remedy)


@timed
def first_step(facts: Facts, measured: Measured) -> Finding | None:
    """Nothing if torch.compile took most of the step."""
    wall, compiled = measured.summary.wall_seconds, facts.compilations
    seconds = wall.get(FIRST_STEP, 0.0) - measured.step_seconds
    share = seconds / measured.seconds
    if share < LEAST or (compiled is not None and compiled.seconds > seconds / 2):
        return None
    evidence = f"The first step took {share:.0%} of the run ({seconds:,.3g} s)"
    stages = dict(facts.first_seconds)
    if "other" in stages:  # the first step begins with the startup
        stages["other"] = max(0.0, stages["other"] - wall.get(STARTUP, 0.0))
    stage = max(stages, key=stages.__getitem__, default="")
    if stage:
        evidence += f", mostly in the stage {stage}"
        if stage == "data" and facts.workers:
            evidence += ", in which the workers start"
        elif facts.accelerator is not None and stage not in REMEDIES:
            evidence += ", in which kernels are loaded and memory is allocated"
    evidence += f", at {facts.first_line}" if facts.first_line else ""
    remedy = REMEDIES.get(stage, LONGER)
    if stage == "data" and facts.workers:
        remedy = f"fewer workers, or a data set that is small to copy and quick to open; or {LONGER}"
    return finding(CAUSE, share, evidence, remedy, line=facts.first_line)


@timed
def counting(_facts: Facts, measured: Measured) -> Finding | None:
    seconds, flops = measured.summary.wall_seconds.get(FLOP_COUNTING, 0.0), measured.summary.flops
    share = seconds / measured.seconds
    if share < LARGE:
        return None
    own = "FLOP counts and measurement of the peak" if flops is not None and flops.peak_measured else "FLOP counts"
    evidence = f"The callback's own {own} took {share:.0%} of the run ({seconds:,.3g} s)"
    return finding(CAUSE, share, evidence, f"PERF_CALLBACKS_FLOPS=estimate, or {LONGER}")
