"""Rule `precision`: the number format of most FLOPs. Only for devices with tensor cores."""

from perf_callbacks.advice.facts import Facts, MachineFacts, Measured, finding
from perf_callbacks.kernel.records.fit_records import Finding

_MIXED = {
    "transformers": "TrainingArguments(bf16=True)",
    "lightning": 'Trainer(precision="bf16-mixed")',
    "accelerate": 'Accelerator(mixed_precision="bf16")',
}


def precision(_machine: MachineFacts, facts: Facts, measured: Measured | None) -> Finding | None:
    """Advise a 16-bit format, or TF32, where most FLOPs are float32."""
    work = facts.work
    if measured is None or not facts.tensor_cores or work is None or not work.by_dtype:
        return None
    share = work.by_dtype.get("float32", 0) / sum(work.by_dtype.values())
    if share < 1 / 2:
        return None
    evidence = f"{share:.0%} of the FLOPs are float32"
    if facts.tf32:
        remedy = _MIXED.get(facts.integration, 'bf16: torch.autocast("cuda", torch.bfloat16)')
        return finding("precision", None, f"{evidence}, in TF32", remedy)
    return finding("precision", None, f"{evidence}, without TF32", 'torch.set_float32_matmul_precision("high")')
