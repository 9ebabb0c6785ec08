"""Switches that make a run easier to debug, and slower. Each is known before a run."""

from perf_callbacks.advice.facts import Facts, MachineFacts, Measured, finding
from perf_callbacks.kernel.records.fit_records import Finding

_REPEATED = {
    "transformers": "TrainingArguments(full_determinism=False)",
    "lightning": "Trainer(deterministic=False)",
}


def blocking(_machine: MachineFacts, facts: Facts, _measured: Measured | None) -> Finding | None:
    """Name `CUDA_LAUNCH_BLOCKING`."""
    if not facts.blocking:
        return None
    return finding("sync", None, "CUDA_LAUNCH_BLOCKING=1 waits for each kernel", "unsetting CUDA_LAUNCH_BLOCKING")


def anomalies(_machine: MachineFacts, facts: Facts, _measured: Measured | None) -> Finding | None:
    """Name autograd's anomaly detection."""
    if not facts.anomalies:
        return None
    return finding("host", None, "Anomaly detection is on", "torch.autograd.set_detect_anomaly(False)")


def deterministic(machine: MachineFacts, facts: Facts, _measured: Measured | None) -> Finding | None:
    """Name deterministic algorithms, which on an accelerator are slower kernels and fill unused memory."""
    if not facts.deterministic or machine.accelerator is None:
        return None
    remedy = _REPEATED.get(facts.integration, "torch.use_deterministic_algorithms(False)")
    return finding("precision", None, "Deterministic algorithms are on, which are slower", remedy)
