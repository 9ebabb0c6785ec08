"""Rule `sync` about gradients that ranks sum more often than the optimizer needs them."""

from perf_callbacks.advice.facts import Facts, MachineFacts, Measured, finding
from perf_callbacks.kernel.records.fit_records import Finding


def reducing(_machine: MachineFacts, facts: Facts, _measured: Measured | None) -> Finding | None:
    """Advise `no_sync` if DDP reduces gradients after several micro-batches of a step."""
    if not facts.ddp or facts.work is None or facts.work.reductions <= 1:
        return None
    evidence = f"DDP reduces gradients after each of {facts.work.reductions} micro-batches of a step"
    remedy = "with model.no_sync(): around all micro-batches but the last"
    if facts.integration == "accelerate":
        remedy = "with accelerator.accumulate(model):"
    return finding("sync", None, evidence, remedy)
