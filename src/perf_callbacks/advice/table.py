"""All rules of advice, and their findings."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from perf_callbacks.advice import (
    busy_time,
    cpu,
    drift,
    host,
    idle_time,
    loading,
    memory,
    model,
    shapes,
    slow_code,
    spans,
    stall,
    startup,
    straggler,
    throttle,
    waits,
)
from perf_callbacks.advice.facts import Facts, Measured, Rule
from perf_callbacks.kernel.failures import describe
from perf_callbacks.kernel.foreign_errors import let_pass
from perf_callbacks.kernel.records.fit_records import Finding, Summary
from perf_callbacks.report import cards

RULES: tuple[Rule, ...] = (
    stall.stall,
    cpu.no_cpu,
    loading.data,
    loading.restarts,
    host.host,
    host.waiting,
    slow_code.forward,
    slow_code.backward,
    slow_code.optimizer,
    waits.logging,
    host.generation,
    host.rewards,
    model.recompute,
    model.padded,
    model.attention,
    model.optimizer,
    memory.garbage,
    memory.memory,
    spans.evaluation,
    spans.checkpoint,
    drift.longer,
    startup.startup,
    startup.first_step,
    startup.counting,
    straggler.straggler,
    straggler.uneven_batches,
    straggler.uneven_stages,
    model.precision,
    model.compiling,
    model.recompiling,
    shapes.padding,
    shapes.tiles,
    waits.reducing,
    waits.reading,
    waits.nan_filter,
    throttle.throttled,
    host.small_batches,
    idle_time.loading,
    idle_time.launches,
    idle_time.waiting,
    busy_time.fusing,
    busy_time.copies,
    busy_time.transfers,
    busy_time.collectives,
    memory.uncached,
    waits.blocking,
    host.anomalies,
    model.deterministic,
    host.too_many_threads,
    host.too_few_threads,
)
"""A rule depends only on its arguments. Before a run, only rules that need no times find something."""


def findings(
    facts: Facts, summary: Summary | None = None, failed: Callable[[str, Exception], object] | None = None
) -> tuple[Finding, ...]:
    """A rule that fails costs its own finding alone, and is itself a finding. `failed` hears of the error."""
    on_cpu = facts if facts.accelerator is None else replace(facts, starved_share=None)
    measured = None if summary is None else Measured(summary, on_cpu)  # a device's times don't depend on CPUs
    results: list[Finding] = []
    for rule in RULES:
        try:
            results += filter(None, [rule(facts, measured)])
        except Exception as error:  # noqa: BLE001 facts may be anything
            let_pass(error)
            name = f"The rule `{rule.__name__}` of the advice"
            results.append(failure(name, error))
            if failed is not None:
                failed(name, error)
    remedies = {finding.remedy for finding in results if finding.cause == cpu.CAUSE}
    results = [finding for finding in results if finding.cause == cpu.CAUSE or finding.remedy not in remedies]
    return ordered(results, hangs=summary is not None and summary.stalls is not None and summary.stalls.under_way)


def failure(part: str, error: Exception) -> Finding:
    """Nothing found in a failed part doesn't mean that nothing is wrong."""
    remedy = "reporting this as a bug: the log has its traceback"
    return Finding(cause=cards.FAILED, share=None, evidence=f"{part} failed: {describe(error)}", remedy=remedy)


def ordered(findings: Sequence[Finding], *, hangs: bool) -> tuple[Finding, ...]:
    """Sort by share, the largest first. Findings without a share come last.

    Before all others come a stall that still lasts, and surplus threads, which slow each operation down. A `cpu` with a
    large share comes before the findings in `cpu.INFLATED`, whose times a lack of CPUs makes longer.
    """
    inflated = max([finding.share or 0.0 for finding in findings if finding.cause in cpu.INFLATED], default=0.0)

    def rank(finding: Finding) -> tuple[bool, bool, float, bool]:
        share = -1.0 if finding.share is None else finding.share
        starved = finding.cause == cpu.CAUSE and share >= cpu.LARGE * inflated
        first = hangs and finding.cause == stall.CAUSE
        return first, finding.cause == cpu.THREADS, max(share, inflated) if starved else share, starved

    return tuple(sorted(findings, key=rank, reverse=True))
