"""Rule `host` about an accelerator that is idle while Python prepares its next kernels: the batch is too small."""

from perf_callbacks.advice.facts import Facts, MachineFacts, Measured, finding
from perf_callbacks.kernel.records.fit_records import Finding

ENOUGH_READINGS = 6
"""Fewest readings of the device's use, at ten seconds each, for a meaningful mean."""

LARGE = 0.1
"""Least share of the run for a finding: the readings are coarse."""


def small(machine: MachineFacts, facts: Facts, measured: Measured | None) -> Finding | None:
    """Advise a larger batch if the device is idle within forward, backward and optimizer.

    The share is a lower bound: it assumes an idle device at all other times, and counts kernels of other processes.
    """
    use = facts.memory
    if measured is None or not measured.known or machine.accelerator is None or use is None or use.gpu_busy is None:
        return None
    share = measured.share(sum(map(measured.stage, ("forward", "backward", "optimizer")))) - use.gpu_busy
    if use.gpu_readings < ENOUGH_READINGS or share < LARGE:
        return None
    evidence = f"The device was idle for {share:.0%} of the run while Python prepared its operations"
    remedy = "larger micro-batches"
    if facts.work is not None and not facts.work.compiled:
        remedy += ', or torch.compile(model, mode="reduce-overhead")'
    return finding("host", share, evidence, remedy)
