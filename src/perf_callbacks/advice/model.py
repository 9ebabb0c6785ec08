"""Rules `recompute` and `attention`: work of the model that could be saved."""

from perf_callbacks.advice.facts import Facts, MachineFacts, Measured, finding
from perf_callbacks.kernel.records.fit_records import Finding

GIGA = 1e9

EAGER = 'Attention is not fused (attn_implementation="eager")'


def recompute(machine: MachineFacts, facts: Facts, measured: Measured | None) -> Finding | None:
    """Name activation checkpointing, which runs forwards again. The forward's time serves to estimate the cost."""
    work = facts.work
    if measured is None or not measured.known or work is None or not work.hardware_flops:
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
    """Name eager attention if the model supports fused attention: before a run, and after a run with a large share.

    The share of attention in the products serves to estimate the saving. Eager attention is bound by memory, so its
    share of the time is larger than that.
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
