"""Rules about the work of the model and its optimizer: the same results with less work, or faster operations."""

from perf_callbacks.advice.facts import Facts, MachineFacts, Measured, finding, timed
from perf_callbacks.kernel.records.fit_records import Finding

GIGA = 1e9

EAGER = 'Attention is not fused (attn_implementation="eager")'

LOW = 0.3
"""Least HFU during forward, backward and optimizer that counts as good without a compiler."""

SAVED = {"Adam": 0.7, "AdamW": 0.7, "Adagrad": 0.3, "SGD": 0.3}
"""Share of the optimizer's time that `fused=True` saves on a CPU, rounded down.

Measured with torch 2.13 on one thread, for tensors of 64 to 262,144 elements. AdamW takes 89 to 1,565 us per tensor in
a loop, and 8 to 178 us fused. SGD with momentum takes 11 to 159 us in a loop, and 2 to 127 us fused. Clipping and
`zero_grad` belong to the same stage, but don't get faster. Adagrad is assumed to save as much as SGD.
"""

_COMPILED = {"transformers": "TrainingArguments(torch_compile=True)"}
_MIXED = {
    "transformers": "TrainingArguments(bf16=True)",
    "lightning": 'Trainer(precision="bf16-mixed")',
    "accelerate": 'Accelerator(mixed_precision="bf16")',
}
_REPEATED = {
    "transformers": "TrainingArguments(full_determinism=False)",
    "lightning": "Trainer(deterministic=False)",
}


@timed
def recompute(machine: MachineFacts, facts: Facts, measured: Measured) -> Finding | None:
    """Name activation checkpointing, which runs forwards again. The forward's time gives an estimate of the cost."""
    work = facts.work
    if work is None or not work.hardware_flops:
        return None
    again, forward = work.by_phase.get("recompute", 0), work.by_phase.get("forward", 0)
    if not again or not forward:
        return None
    seconds = min(measured.stage("forward") * again / forward, measured.stage("backward"))
    evidence = f"Recomputation for activation checkpointing takes {again / work.hardware_flops:.0%} of executed FLOPs"
    if machine.accelerator is None and machine.memory_available is not None:
        evidence += f" while {machine.memory_available / GIGA:.0f} GB of memory are free"
    remedy = "model.gradient_checkpointing_disable(), or checkpointing fewer layers"
    if facts.integration == "transformers":
        remedy = "TrainingArguments(gradient_checkpointing=False)"
    return finding("recompute", measured.share(seconds), evidence, remedy)


def attention(_machine: MachineFacts, facts: Facts, measured: Measured | None) -> Finding | None:
    """Name eager attention if the model supports fused attention. Before a run, the share is unknown.

    After a run, the share of attention in the FLOPs of products gives an estimate of the saving. The real saving is
    larger, because eager attention is bound by memory.
    """
    if facts.attention != "eager" or not facts.sdpa:
        return None
    remedy = 'from_pretrained(..., attn_implementation="sdpa")'
    if measured is None:
        return finding("attention", None, EAGER, remedy)
    if not measured.known or facts.work is None:
        return None
    products = facts.work.products
    batched = sum([flops for operation, _, _, flops in products if operation in {"aten::bmm", "aten::baddbmm"}])
    every = sum([flops for *_, flops in products])
    if not batched:
        return None
    seconds = batched / every * (measured.stage("forward") + measured.stage("backward"))
    evidence = f"{EAGER}, and its products are {batched / every:.0%} of the FLOPs"
    return finding("attention", measured.share(seconds), evidence, remedy)


@timed
def optimizer(machine: MachineFacts, facts: Facts, measured: Measured) -> Finding | None:
    """Advise the fused form of torch's optimizer. An accelerator updates many tensors at once in any case."""
    saved = SAVED.get(facts.optimizer or "")
    if saved is None or facts.fused or machine.accelerator is not None:
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


@timed
def compiling(_machine: MachineFacts, facts: Facts, measured: Measured) -> Finding | None:
    """Advise torch.compile on a device with tensor cores if nothing is compiled and HFU is low."""
    if not facts.tensor_cores or facts.work is None or facts.work.compiled:
        return None
    hfu, working = measured.summary.hfu, measured.computing
    if hfu is None or not working or hfu * measured.step_seconds / working >= LOW:
        return None
    evidence = f"Nothing is compiled, and HFU is {hfu:.0%}"
    return finding("compile", None, evidence, _COMPILED.get(facts.integration, "torch.compile(model)"))


def precision(_machine: MachineFacts, facts: Facts, _measured: Measured | None) -> Finding | None:
    """Advise a 16-bit format, or TF32, if most FLOPs on a device with tensor cores are float32."""
    work = facts.work
    if not facts.tensor_cores or work is None or not work.by_dtype:
        return None
    share = work.by_dtype.get("float32", 0) / sum(work.by_dtype.values())
    if share < 1 / 2:
        return None
    evidence = f"{share:.0%} of the FLOPs are float32"
    if facts.tf32:
        remedy = _MIXED.get(facts.integration, 'bf16: torch.autocast("cuda", torch.bfloat16)')
        return finding("precision", None, f"{evidence}, in TF32", remedy)
    return finding("precision", None, f"{evidence}, without TF32", 'torch.set_float32_matmul_precision("high")')


def deterministic(machine: MachineFacts, facts: Facts, _measured: Measured | None) -> Finding | None:
    """Name deterministic algorithms. On an accelerator, their kernels are slower, and torch fills unused memory."""
    if not facts.deterministic or machine.accelerator is None:
        return None
    remedy = _REPEATED.get(facts.integration, "torch.use_deterministic_algorithms(False)")
    return finding("precision", None, "Deterministic algorithms are on, which are slower", remedy)
