"""Rule `optimizer`: an optimizer that updates its tensors one by one."""

from perf_callbacks.advice.facts import Facts, MachineFacts, Measured, finding
from perf_callbacks.kernel.records.fit_records import Finding

SAVED = {"Adam": 0.7, "AdamW": 0.7, "Adagrad": 0.3, "SGD": 0.3}
"""Share of the optimizer's time that `fused=True` saves on a CPU, rounded down.

Measured with torch 2.13 on one thread, 64 to 262,144 elements per tensor, loop and fused: AdamW 89 to 1,565 and 8 to
178 us per tensor, SGD with momentum 11 to 159 and 2 to 127. Clipping and `zero_grad` belong to the same stage, but
don't get faster. Adagrad is assumed to save as much as SGD.
"""


def optimizer(machine: MachineFacts, facts: Facts, measured: Measured | None) -> Finding | None:
    """Advise the fused form of torch's optimizer. An accelerator updates many tensors at once in any case."""
    saved = SAVED.get(facts.optimizer or "")
    if measured is None or not measured.known or saved is None or facts.fused or machine.accelerator is not None:
        return None
    seconds = measured.stage("optimizer")
    evidence = (
        f"The optimizer took {measured.share(seconds):.0%} of the run: "
        f"{facts.optimizer} updates {facts.tensors:,} tensors one by one"
    )
    remedy = f"torch.optim.{facts.optimizer}(..., fused=True)"
    if facts.integration == "transformers" and facts.optimizer == "AdamW":
        remedy = 'TrainingArguments(optim="adamw_torch_fused")'
    return finding("optimizer", measured.share(saved * seconds), evidence, remedy)
