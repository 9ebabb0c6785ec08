"""Rule `compile`: kernels that torch.compile could fuse. Only for devices with tensor cores."""

from perf_callbacks.advice.facts import Facts, MachineFacts, Measured, finding
from perf_callbacks.kernel.records.fit_records import Finding

LOW = 0.3
"""Least HFU during forward, backward and optimizer that counts as good without a compiler."""

_SWITCH = {"transformers": "TrainingArguments(torch_compile=True)"}


def compiling(_machine: MachineFacts, facts: Facts, measured: Measured | None) -> Finding | None:
    """Advise torch.compile if nothing is compiled and HFU is low."""
    if measured is None or not measured.known or not facts.tensor_cores or facts.work is None or facts.work.compiled:
        return None
    hfu, working = measured.summary.hfu, sum(map(measured.stage, ("forward", "backward", "optimizer")))
    if hfu is None or not working or hfu * measured.step_seconds / working >= LOW:
        return None
    evidence = f"Nothing is compiled, and HFU is {hfu:.0%}"
    return finding("compile", None, evidence, _SWITCH.get(facts.integration, "torch.compile(model)"))
