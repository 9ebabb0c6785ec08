"""Rules `precision` and `shape`: they speak only where the device has tensor cores."""

from perf_callbacks.advice.facts import Facts, Machine, Measured, finding
from perf_callbacks.core.product_shapes import misaligned
from perf_callbacks.core.records import Finding

MATTERS = 0.1
"""Least share of the FLOPs that a size must take part in to be named."""


def precision(_machine: Machine, facts: Facts, measured: Measured | None) -> Finding | None:
    """Advise a 16-bit format, or TF32, where most FLOPs are float32."""
    work = facts.work
    if measured is None or not facts.tensor_cores or work is None or not work.by_dtype:
        return None
    share = work.by_dtype.get("float32", 0) / sum(work.by_dtype.values())
    if share < 1 / 2:
        return None
    evidence = f"{share:.0%} of the FLOPs are float32"
    if facts.tf32:
        remedy = 'bf16: torch.autocast("cuda", torch.bfloat16)'
        if facts.door == "transformers":
            remedy = "TrainingArguments(bf16=True)"
        elif facts.door == "lightning":
            remedy = 'Trainer(precision="bf16-mixed")'
        return finding("precision", None, f"{evidence}, in TF32", remedy)
    return finding("precision", None, f"{evidence}, without TF32", 'torch.set_float32_matmul_precision("high")')


def shape(_machine: Machine, facts: Facts, _measured: Measured | None) -> Finding | None:
    """Name the size in most FLOPs that is no multiple of 8, with the size to take instead."""
    if not facts.tensor_cores or facts.work is None:
        return None
    worst = next(iter(misaligned(facts.work.products)), None)
    if worst is None or worst.share < MATTERS:
        return None
    evidence = f"The size {worst.size:,} is no multiple of 8, in products with {worst.share:.0%} of the FLOPs"
    return finding("shape", None, evidence, f"padding it to {worst.better:,}")
