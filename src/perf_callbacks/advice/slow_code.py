"""Rules `host` about slow code of the program in forward, backward and optimizer: Python, small operations, sleeps."""

from perf_callbacks.advice.facts import Facts, Measured, finding, timed
from perf_callbacks.advice.profiled_steps import slow_code_share
from perf_callbacks.kernel.records.fit_records import Finding
from perf_callbacks.kernel.records.shares import LARGE

BESIDE = 1.2
"""Largest saving, relative to the time of the slow code. Other code runs faster without it."""


@timed
def forward(facts: Facts, measured: Measured) -> Finding | None:
    """Also in the loss, for example a loop over samples."""
    return _named("forward", facts, measured)


@timed
def backward(facts: Facts, measured: Measured) -> Finding | None:
    """In hooks, and in the program's own autograd functions."""
    return _named("backward", facts, measured)


@timed
def optimizer(facts: Facts, measured: Measured) -> Finding | None:
    """In clipping, in hooks and in schedulers."""
    return _named("optimizer", facts, measured)


def _named(stage: str, facts: Facts, measured: Measured) -> Finding | None:
    code = facts.slow_code.get(stage)
    if code is None:
        return None
    name = code.line.rpartition("`")[0].rpartition("`")[2]
    remedy = f"vectorizing `{name}`, or calling it every 50 steps"
    if code.in_loop or name.startswith("<"):
        remedy = "vectorizing this code, or running it every 50 steps"
    if facts.accelerator is not None:
        part = code.looks / code.of_all
        evidence = f"Python code in {stage} kept the host busy for {part:.0%} of the run, mostly at {code.line}"
        share = slow_code_share(facts, measured, part)
        return finding("host", share, evidence, remedy, line=code.line) if part >= LARGE else None
    share = measured.share(measured.stage(stage) * code.part)
    evidence = f"Python code in {stage} took {share:.0%} of the run, mostly at {code.line}"
    won = measured.with_cpu(share)
    low = measured.low(won, stage)
    least, most = [end / code.part for end in code.interval]
    least *= won if low is None else low
    return finding("host", min(BESIDE * most * won, (won + 1) / 2), evidence, remedy, low=least, line=code.line)
