"""Rules about the model and its optimizer, which advise less work for the same results, or faster operations."""

import math

from perf_callbacks.advice.facts import Facts, Measured, finding, timed
from perf_callbacks.advice.profiled_steps import on_device
from perf_callbacks.kernel.records.fit_records import Finding
from perf_callbacks.kernel.records.shares import LARGE
from perf_callbacks.kernel.settings.config import LONGEST_TEXT
from perf_callbacks.kernel.units import GB

EAGER = 'Attention is not fused (attn_implementation="eager")'

SHAPED = ("size", "stride", "shape")

LOW = 0.3
"""torch.compile is advised only if HFU in forward, backward and optimizer is below."""

RECOMPUTED = (0.75, 1.65)
"""Limits for the time of recomputation, divided by its estimate from FLOPs: operations without FLOPs run again too.

From ten Llamas on one thread (`benchmarks/advice_figures.py llama` at 0da62bbb). Six of `benchmarks/promises.py`
saved 1.05 to 1.63 times the estimate.
"""

FORWARDS = 1.4
"""Most time of a recomputation, relative to all forwards. It also builds the autograd graph."""

FUSED = (0.5, 1.5)
"""Least and most time that fused attention saves, relative to the estimated time of attention.

Measured on a CPU, for attention heads of size 16 and 32; nothing was measured on an accelerator.
"""

FUSED_WIDE = (0.0, 0.6)
"""Replaces `FUSED` on a CPU for heads wider than `NARROW`: with short sequences, nothing is saved."""

NARROW = 32

SAVED = {
    "Adam": (0.75, 0.68, 0.57),
    "AdamW": (0.75, 0.7, 0.6),
    "Adagrad": (0.65, 0.6, 0.46),
    "SGD": (0.6, 0.5, 0.28),
}
"""Shares of an update's time that `fused=True` saves on a CPU, by optimizer and mean size in `SIZES`.

`benchmarks/optimizers.py` at 0da62bbb measured them with torch 2.13 on one thread, for 10 to 400 tensors of 64 to
262,144 elements. SGD means SGD with momentum. Without momentum, `fused=True` saves nothing for large tensors.
"""

UPDATED = (0.9, 1.7)
"""Least and most gain from a fused update, relative to `SAVED`: it leaves more of the CPU's caches to the model.

Fourteen programs of `benchmarks/promises.py` gained 1.0 to 1.7 times what `SAVED` predicts.
"""

RECOMPILED = (0.8, 1.6)
"""Least and most gain from few shapes of batches, relative to the time of torch.compile: there are fewer guards too.

Programs of `benchmarks/promises.py` saved 0.95 to 1.53 times that time.
"""

PADDED = (0.4, 1.1)
"""Least and most gain from batches of similar lengths, relative to the estimated time of padding.

Small batches take longer per token, and some padding stays. In `benchmarks/promises.py`, nine programs saved 0.44 to
1.05 times that time.
"""

SIZES = (1024, 16_384, math.inf)

REACHED_BEFORE, REACHED_AFTER = 0.7, 0.3
"""Least part of the peak that matrix products are assumed to reach, in float32 and in a faster format.

GPT-2 small in the Hugging Face `Trainer` reached 0.59 of the peak of float32 on an H200, over whole steps.
"""

_AUTOCAST = {
    "bf16": 'torch.autocast("{device}", torch.bfloat16)',
    "fp16": 'torch.autocast("{device}", torch.float16) with torch.amp.GradScaler',
}
_NUMBERS = {"bf16": "bf16", "fp16": "16"}


@timed
def recompute(facts: Facts, measured: Measured) -> Finding | None:
    work = facts.work
    if work is None or not work.hardware_flops:
        return None
    again, forward = work.by_phase.get("recompute", 0), work.by_phase.get("forward", 0)
    if not again or not forward:
        return None
    estimate = min(measured.model("forward") * again / forward, measured.model("backward"))
    seconds = max(estimate, min(FORWARDS * measured.model("forward"), RECOMPUTED[1] * estimate))
    evidence = f"Recomputation for activation checkpointing takes {again / work.hardware_flops:.0%} of executed FLOPs"
    if facts.accelerator is None and facts.memory_available is not None:
        evidence += f" while {facts.memory_available / GB:.0f} GB of memory are free"
    remedy = "checkpointing fewer layers, or none"
    if facts.checkpointing is not None:
        remedy = f"model.{facts.checkpointing}_disable(), or checkpointing fewer layers"
    option = facts.option("activation_checkpointing", value=False)
    remedy = option or facts.option("gradient_checkpointing", value=False) or remedy
    share = measured.with_cpu(measured.share(seconds))
    low = measured.low(RECOMPUTED[0] * measured.with_cpu(measured.share(estimate)), "forward", "backward")
    return finding("recompute", share, evidence, remedy, low=low)


@timed
def padded(facts: Facts, measured: Measured) -> Finding | None:
    tokens, useful = measured.summary.included_tokens, measured.summary.included_useful_tokens
    part = 0.0 if not tokens or useful is None else 1 - useful / tokens
    if part < LARGE:
        return None
    evidence = f"{part:.0%} of the tokens are padding"
    grouped = facts.option("train_sampling_strategy", '"group_by_length"') or facts.option(
        "group_by_length", value=True
    )
    remedy = f"{grouped or 'batches of samples of similar length'}, or packing"
    if facts.batch_lengths == 1:
        evidence += ", and all batches have the same length"
        remedy = f"padding to the longest sample of a batch, with {remedy}"
    share = measured.with_cpu(measured.share(part * (measured.model("forward") + measured.model("backward"))))
    least, most = PADDED
    low = measured.low(least * share, "forward", "backward")
    return finding("padding", min(most * share, (share + 1) / 2), evidence, remedy, low=low)


def attention(facts: Facts, measured: Measured | None) -> Finding | None:
    """Report eager attention if the model supports fused attention. Before a run, the share is unknown.

    The estimate is attention's share of the FLOPs of matrix products. The real saving may be larger, because memory
    bandwidth limits eager attention, or smaller, because fused attention takes time too.
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
    seconds = batched / every * (measured.model("forward") + measured.model("backward"))
    evidence = f"{EAGER}, and its products are {batched / every:.0%} of the FLOPs"
    share = measured.with_cpu(measured.share(seconds))
    wide = facts.accelerator is None and (facts.head or 0) > NARROW
    least, most = FUSED_WIDE if wide else FUSED
    low = measured.low(least * share, "forward", "backward")
    return finding("attention", most * share, evidence, remedy, low=low)


@timed
def optimizer(facts: Facts, measured: Measured) -> Finding | None:
    """Advise the fused form of torch's optimizer. On an accelerator, torch updates many tensors at once anyway.

    Clipping, hooks, the scheduler and `zero_grad` don't get faster.
    """
    saved = saved_by_fused(facts.optimizer, facts.elements)
    if not saved or facts.fused or facts.accelerator is not None or facts.update_part is None:
        return None
    seconds = min(facts.update_part * measured.stage("optimizer"), measured.model("optimizer"))
    evidence = (
        f"The optimizer's update took {measured.share(seconds):.0%} of the run: "
        f"{facts.optimizer} updates {facts.tensors:,} tensors one by one"
    )
    remedy = facts.option("optim", '"adamw_torch_fused"') or f"torch.optim.{facts.optimizer}(..., fused=True)"
    share = measured.with_cpu(measured.share(saved * seconds))
    least, most = UPDATED
    low = measured.low(least * share, "optimizer")
    return finding("optimizer", min(most * share, (share + 1) / 2), evidence, remedy, low=low)


@timed
def recompiling(facts: Facts, measured: Measured) -> Finding | None:
    compilations = facts.compilations
    if compilations is None or not compilations.number:
        return None
    share = compilations.seconds / measured.seconds
    number = "once" if compilations.number == 1 else f"{compilations.number:,} times"
    evidence = f"torch.compile took {share:.0%} of the run: it compiled {number}"
    remedy = "a longer run, or TORCHINDUCTOR_CACHE_DIR on a disk that stays, which makes later runs compile faster"
    if compilations.repeated:
        again = "once" if compilations.repeated == 1 else f"{compilations.repeated:,} times"
        evidence += f", {again} because a guard failed"
        evidence += f" ({compilations.reason[:LONGEST_TEXT]})" if compilations.reason else ""
        remedy = "TORCH_LOGS=recompiles, which names each guard that fails"
        if any(word in compilations.reason for word in SHAPED):
            least, most = RECOMPILED
            remedy = f"batches of few shapes, or {_dynamic(facts)}"
            return finding("compile", min(most * share, (share + 1) / 2), evidence, remedy, low=least * share)
    return finding("compile", share, evidence, remedy)


@timed
def compiling(facts: Facts, measured: Measured) -> Finding | None:
    """Advise torch.compile if nothing is compiled and HFU is low, on a device with fast 16-bit matrix products.

    With a profile, `busy_time.fusing` and `idle_time.launches` do so instead, and estimate the saving.
    """
    if facts.half is None or facts.work is None or facts.work.compiled or on_device(facts, measured):
        return None
    hfu, working = measured.summary.hfu, measured.computing
    if hfu is None or not working or hfu * measured.step_seconds / working >= LOW:
        return None
    evidence = f"Nothing is compiled, and HFU is {hfu:.0%}"
    return finding("compile", None, evidence, compiled(facts))


def compiled(facts: Facts) -> str:
    return facts.option("torch_compile", value=True) or "torch.compile(model)"


def without_launches(facts: Facts) -> str:
    mode = '"reduce-overhead"'
    return facts.option("torch_compile_mode", mode) or f"torch.compile(model, mode={mode})"


def _dynamic(facts: Facts) -> str:
    # a trainer that compiles by an argument passes no `dynamic`, but accelerate reads it from the environment
    trainer = facts.integration == "transformers" and "torch_compile" not in facts.options
    return "ACCELERATE_DYNAMO_USE_DYNAMIC=1" if trainer else "torch.compile(..., dynamic=True)"


def precision(facts: Facts, measured: Measured | None) -> Finding | None:
    work = facts.work
    if facts.half is None or work is None or not sum(work.by_dtype.values()):
        return None
    single = work.by_dtype.get("float32", 0) + work.by_dtype.get("tfloat32", 0)
    share = single / sum(work.by_dtype.values())
    if share < 1 / 2:
        return None
    evidence = f"{share:.0%} of the FLOPs are float32"
    if facts.tf32_possible and not facts.tf32:
        won, low = _faster_products(facts, measured, single, "fp32", "tf32")
        remedy = 'torch.set_float32_matmul_precision("high")'
        return finding("precision", won, f"{evidence}, without TF32", remedy, low=low)
    won, low = _faster_products(facts, measured, single, "tf32" if facts.tf32 else "fp32", facts.half)
    remedy = (
        facts.option(facts.half, value=True)
        or facts.option("precision", f'"{_NUMBERS[facts.half]}-mixed"')
        or facts.option("mixed_precision", f'"{facts.half}"')
        or _AUTOCAST[facts.half].format(device=facts.device_type)
    )
    return finding("precision", won, f"{evidence}, in TF32" if facts.tf32 else evidence, remedy, low=low)


def _faster_products(
    facts: Facts, measured: Measured | None, flops: float, before: str, after: str
) -> tuple[float | None, float | None]:
    """Return the largest and the least share of the run that a faster format saves; None: unknown.

    Matrix products take at least their FLOPs divided by the peak, and at most all of forward and backward. A 16-bit
    format also halves the bytes that other operations move.
    """
    peaks = facts.peaks
    old, new = (None if peaks is None else peaks.peak_flops_per_second(name) for name in (before, after))
    if measured is None or not measured.known or not old or not new or measured.summary.flops is None:
        return None, None
    each = flops / max(1, measured.summary.flops.devices or 1)
    slowest, fastest = REACHED_BEFORE, REACHED_AFTER
    every = measured.model("forward") + measured.model("backward")
    longest = min(every, each / (slowest * old))
    halved = 0.0 if after == "tf32" else (every - longest) / 2
    most, least = longest - each / new + halved, each / old - each / (fastest * new)
    return measured.share(max(0.0, most)), measured.low(measured.share(max(0.0, least)), "forward", "backward")


def saved_by_fused(optimizer: str | None, elements: float) -> float:
    """On a CPU; 0 if no saving is known."""
    shares = SAVED.get(optimizer or "", ())
    return next((saved for most, saved in zip(SIZES, shares, strict=False) if elements <= most), 0.0)


def deterministic(facts: Facts, _measured: Measured | None) -> Finding | None:
    """On an accelerator, deterministic algorithms are slower, and torch also fills uninitialized memory."""
    if not facts.deterministic or facts.accelerator is None:
        return None
    remedy = (
        facts.option("full_determinism", value=False)
        or facts.option("deterministic", value=False)
        or "torch.use_deterministic_algorithms(False)"
    )
    return finding("precision", None, "Deterministic algorithms are on, which are slower", remedy)
