"""Rules `host`: Python code, threads or generation that keep the training waiting."""

from dataclasses import replace

from perf_callbacks.advice import cpu, drift, model
from perf_callbacks.advice.facts import TRAINERS, Facts, Measured, finding, interrupting, timed
from perf_callbacks.advice.profiled_steps import on_device, unknown_loading
from perf_callbacks.advice.throttle import ENOUGH_READINGS
from perf_callbacks.advice.waits import reads_each_step, waits_part
from perf_callbacks.kernel.engine.account import GENERATION, REWARDS
from perf_callbacks.kernel.plural import plural
from perf_callbacks.kernel.records.fit_records import Finding
from perf_callbacks.kernel.records.shares import LARGE, MAJORITY


@timed
def host(facts: Facts, measured: Measured) -> Finding | None:
    """Python code outside of loader, model and optimizer.

    In a trainer's loop, a line of the user's program is needed, because users can't change the trainer's code.
    """
    if reads_each_step(facts):  # the rule `sync` covers the same time
        return None
    if facts.integration in TRAINERS and facts.host_line is None:
        return None
    share = measured.share(measured.unnamed - unknown_loading(facts, measured))
    grown = drift.saved(facts, measured)
    if facts.drift is not None and facts.drift.stage == "other" and grown is not None and grown >= share / 2:
        return None  # the rule `drift` covers most of the same time
    evidence = (
        f"Python code outside of forward, backward and optimizer (callbacks, metrics, logging) took {share:.0%} of the "
        "run"
    )
    evidence += f", mostly at {facts.host_line}" if facts.host_line else ""
    remedy = "running it every 50 steps, or after training"
    low, won = interrupting(measured.with_cpu(share))
    return finding("host", won, evidence, remedy, low=measured.low(low, "other"), line=facts.host_line)


@timed
def waiting(facts: Facts, measured: Measured) -> Finding | None:
    """Waits beside reads of values. Without such reads, the rule `host` names their line."""
    part, wait = waits_part(facts), facts.host_wait
    if wait is None or not part or not reads_each_step(facts):
        return None
    share = measured.share(part * (measured.unnamed - unknown_loading(facts, measured)))
    evidence = f"Waits outside of forward, backward and optimizer took {share:.0%} of the run, mostly at {wait.line}"
    remedy = "waiting in another thread, or every 50 steps"
    low, won = interrupting(share)
    low *= wait.interval[0] / part
    return finding("host", won, evidence, remedy, low=measured.low(low, "other"), line=wait.line)


@timed
def generation(facts: Facts, measured: Measured) -> Finding | None:
    """Time in which TRL generates completions. vLLM is faster, but needs an accelerator."""
    share = measured.share(measured.part(GENERATION))
    remedy = "fewer or shorter completions"
    names = [name for name in ("num_generations", "max_completion_length", "max_new_tokens") if name in facts.options]
    remedy += f" ({', '.join(names)})" if names else ""
    vllm = facts.option("use_vllm", value=True)
    if facts.accelerator is not None and vllm:
        remedy = f"{vllm}, which needs vLLM, or {remedy}"
    return finding("host", measured.with_cpu(share), f"Generating completions took {share:.0%} of the run", remedy)


@timed
def rewards(_facts: Facts, measured: Measured) -> Finding | None:
    share = measured.share(measured.part(REWARDS))
    remedy = "reward functions that take all completions at once"
    return finding("host", measured.with_cpu(share), f"Computing rewards took {share:.0%} of the run", remedy)


@timed
def small_batches(facts: Facts, measured: Measured) -> Finding | None:
    """The device is idle within forward, backward and optimizer.

    This is a lower limit, because busy time of other stages and other processes is subtracted too.
    """
    use = facts.memory
    if facts.accelerator is None or use is None or use.gpu_busy is None or on_device(facts, measured):
        return None
    share = measured.share(measured.computing) - use.gpu_busy
    if use.gpu_readings < ENOUGH_READINGS or share < LARGE:
        return None
    evidence = f"The device was idle for {share:.0%} of the run while Python prepared its operations"
    remedy = "larger micro-batches"
    if facts.work is not None and not facts.work.compiled:
        remedy += f", or {model.without_launches(facts)}"
    return finding("host", share, evidence, remedy)


def too_many_threads(facts: Facts, measured: Measured | None) -> Finding | None:
    if measured is None or not measured.known:  # a moment says little about other programs
        facts = replace(facts, left_cpus=None)
    surplus = cpu.surplus_threads(facts)
    if surplus is None:
        return None
    evidence, remedy = surplus
    return finding(cpu.THREADS, None, evidence[0].upper() + evidence[1:], remedy)


@timed
def too_few_threads(facts: Facts, measured: Measured) -> Finding | None:
    """Advise more threads if they use less than half of the CPUs, and at least half of the CPUs are idle.

    The saving is unknown: small operations run in one thread in any case.
    """
    cpus, idle = facts.cpus, facts.free_cpus
    if facts.accelerator is not None or cpus is None or idle is None:
        return None
    if 2 * facts.threads >= cpus or idle < cpus / 2 or measured.share(measured.computing) < MAJORITY:
        return None
    evidence = f"Operations use {plural(facts.threads, 'thread')}, and {idle:.0f} of {plural(cpus, 'CPU')} were idle"
    wanted = min(cpus, facts.threads + int(idle))
    return finding("host", None, evidence, f"{facts.threads_code.format(wanted)}, if the operations are large")


def anomalies(facts: Facts, _measured: Measured | None) -> Finding | None:
    if not facts.anomalies:
        return None
    remedy = facts.option("detect_anomaly", value=False) or "torch.autograd.set_detect_anomaly(False)"
    return finding("host", None, "Anomaly detection is on", remedy)
