"""Sentences and remedies of all rules. They stand in `wordings.txt`, and nowhere else in the tests.

`WRITE_SNAPSHOTS=1 python -m pytest tests/advice/test_wordings.py` writes the file anew.
"""

import re
from dataclasses import replace
from pathlib import Path

import profiled_cases
from advised import PLAIN, WORK, found, machine, summary, used
from doc_tables import DOCS
from profiled_cases import ACCELERATE, CPU, CUDA, GRPO, LIGHTNING, READS, RUN, SLOW_CODE, TRAINER
from snapshots import matches

from perf_callbacks.advice import step_blocks, table
from perf_callbacks.advice.compilations import Compilations
from perf_callbacks.advice.facts import Drift, Facts, Measured, SlowCode
from perf_callbacks.flops.peaks.peak_rates import lookup
from perf_callbacks.kernel.process.device_use import DeviceUse
from perf_callbacks.kernel.records.machine_records import Memory
from perf_callbacks.kernel.records.summary_parts import FlopsSummary, StallSummary, StragglerSummary
from perf_callbacks.memory.device_readings import DeviceReadings
from perf_callbacks.memory.use import Leak

NPU = machine(accelerator="npu")


def lowered(reason, mhz=1200, **known):
    """Ten readings of a device's clock, of which six were low."""
    readings = DeviceReadings()
    for clock in (1980,) * 4 + (mhz,) * 6:
        reasons = (reason,) if clock < 1980 else ()
        use = {"utilization": 1.0, "max_sm_mhz": 1980, "throttled_by": reasons, "celsius": 88} | known
        readings.add(1, DeviceUse(sm_mhz=clock, **use))
    return Facts(readings=readings)


def work(*products, **changes):
    """Counted work of one step in bfloat16, of these products with their shapes and FLOPs."""
    products = tuple([("aten::mm", shapes, "bfloat16", flops) for shapes, flops in products]) or PLAIN.products
    return replace(PLAIN, **{"by_dtype": {"bfloat16": 100}, "products": products} | changes)


def grpo(**parts):
    """Steps of two seconds, of which these are parts of other time."""
    return replace(summary(other=1.0), other_seconds={name: 100 * seconds for name, seconds in parts.items()})


def spans(kind):
    """A fit with an evaluation or a checkpoint after every three steps."""
    return summary(steps=90, spans={kind: 45.0}, counts={kind: 30})


def scheduled(**objects):
    """A fit with slow collections by the schedule."""
    of = summary(gc=GARBAGE | {"gc_scheduled_seconds": 90.0}, forward=1.3)
    return replace(of, gc=replace(of.gc, **objects))


def stragglers(cause):
    """A fit in which ranks waited for rank 3."""
    lost = {cause: 10.0, "steal": 6.2}
    slow = ((3, cause, 10.0, 38), (0, "steal", 6.0, 1))
    return replace(
        RUN, stragglers=StragglerSummary(steps=100, seconds=100.0, seconds_by_cause=lost, costliest=slow, slowdown=1.2)
    )


def uneven(**seconds):
    """A fit in which a third of 100 compared seconds is due to uneven work."""
    return replace(RUN, stragglers=StragglerSummary(steps=100, seconds=100.0, slowdown=1.5, **seconds))


HUNG = "Rank 3 is in data: loader.py:41 `__getitem__`. 7 ranks wait in backward: train.py:50 `main`."
WAITS, BETWEEN = summary(data=1.0), summary(other=1.0)
GARBAGE = {"gc_seconds": 100.0, "gc_collections": (7, 1, 2)}
OFTEN = summary(gc=GARBAGE, forward=1.3)
EPOCHS = Facts(workers=2, work=PLAIN, epochs=10, epoch_wait_seconds=0.5, epoch_wait_in_rows=0.5)
EAGER = Facts(work=PLAIN, attention="eager", sdpa=True)
ADAMW = Facts(optimizer="AdamW", tensors=1234, elements=4096.0, update_part=1.0)
STARVED = Facts(workers=0, starved_share=0.4)
DRIFT = Drift(first=0.04, last=0.06, share=0.2, stage="other")
H200 = lookup("NVIDIA H200")
GPT2_FP32, GPT2_TF32 = (replace(PLAIN, by_dtype={name: 7_000 * 10**9}) for name in ("float32", "tfloat32"))
GPT2_RUN = replace(
    summary(data=0.0007, forward=0.0577, backward=0.112, optimizer=0.0037, other=0.0024), flops=FlopsSummary(devices=1)
)
IN_TF32 = replace(PLAIN, by_dtype={"tfloat32": 100})
TF32 = {"tf32_possible": True, "tf32": True, "device_type": "cuda"}
EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
UNCOMPILED = Facts(half="bf16", work=work())
SLOW = replace(RUN, flops=FlopsSummary(hardware_flops=100, seconds=1.0, peak_flops_per_second=400.0))
LLAMA = work(("[8192, 4096] x [4096, 10922]", 60), ("[8192, 4096] x [4096, 4096]", 40))
GPT2 = work(("[8192, 768] x [768, 50257]", 60), ("[8192, 768] x [768, 3072]", 40))
LEAK = Leak(gb_per_hour=2.5, gb_per_step=0.0008, before_gb=3.0, after_gb=4.0)
PARTS = Memory(step=2, device="cuda", activations_gb=30.25, peak_gb=70.5)
HUGE = Facts(workers=0, batch_bytes=10**9)
BURSTS = Facts(workers=2, calm_share=0.8, burst_seconds=3.0)
READ = replace(PLAIN, values_read={"/home/a/train.py:41": 2})
WAIT = SlowCode("train.py:42 `train`", 18, 20, 40)
FIRST = summary(spans={"first_step": 50.0})

CASES = {
    "data": {
        "no workers": (Facts(workers=0), WAITS, CPU),
        "too few workers": (Facts(workers=2), WAITS, CPU),
        "no loader": (Facts(workers=None), WAITS, CPU),
        "no room for workers": (Facts(workers=2), WAITS, machine(cpus=2)),
        "a single CPU": (Facts(workers=1), WAITS, machine(cpus=1)),
        "a busy CPU": (Facts(workers=0, threads=2), summary(data=0.25), machine(cpus=1)),
        "CPUs busy with other programs": (Facts(workers=0, free_cpus=0.0), summary(data=0.5), machine(cpus=2)),
        "a line": (Facts(workers=0, data_line="data.py:7 `parse`"), WAITS, CPU),
        "memory for few workers": (HUGE, summary(data=3.0), machine(memory_available=13e9)),
        "memory for a worker": (HUGE, summary(data=3.0), machine(memory_available=5e9)),
        "memory for no worker": (HUGE, WAITS, machine(memory_available=2e9)),
        "bursts": (BURSTS, WAITS, CPU),
        "bursts without memory": (replace(BURSTS, batch_bytes=10**9), WAITS, machine(memory_available=9e9)),
        "on a device": (Facts(workers=0), WAITS, CUDA),
        "workers start": (EPOCHS, summary(data=0.5), CPU),
        "workers start once": (replace(EPOCHS, epochs=1), summary(data=0.5), CPU),
    },
    "cpu": {
        "a quota": (replace(STARVED, quota_reached=True), RUN, CPU),
        "threads": (replace(STARVED, threads=16), RUN, CPU),
        "workers": (replace(STARVED, workers=8), RUN, CPU),
        "threads and workers": (replace(STARVED, workers=3, threads=8), RUN, CPU),
        "threads and a worker": (replace(STARVED, workers=1, threads=2), RUN, machine(cpus=2)),
        "other programs": (STARVED, RUN, machine(cpus=1)),
    },
    "threads": {
        "too many": (Facts(threads=16), None, CPU),
        "a single CPU": (Facts(threads=16), None, machine(cpus=1)),
        "other programs": (Facts(threads=8, left_cpus=1.9), RUN, CPU),
    },
    "drift": {
        "in a stage of the model": (Facts(drift=DRIFT), RUN, CPU),
        "on a GPU": (Facts(drift=DRIFT._replace(stage="forward"), clocks="nvidia-smi -q -d PERFORMANCE"), RUN, CUDA),
        "on a device": (Facts(drift=DRIFT._replace(stage="forward")), RUN, NPU),
        "in the loader": (Facts(drift=DRIFT._replace(stage="data")), RUN, CPU),
        "in collections": (Facts(drift=DRIFT._replace(stage="gc")), RUN, CPU),
    },
    "host": {
        "between stages": (Facts(), BETWEEN, CPU),
        "a line": (Facts(host_line="train.py:3 `score`"), BETWEEN, CPU),
        "a wait beside values read": (Facts(host_wait=WAIT, work=READ), BETWEEN, CPU),
        "slow code in forward": (Facts(slow_code={"forward": SLOW_CODE}), RUN, CPU),
        "slow code in backward": (Facts(slow_code={"backward": SLOW_CODE}), RUN, CPU),
        "slow code in optimizer": (
            Facts(slow_code={"optimizer": SLOW_CODE._replace(line="train.py:7 `<lambda>`")}), RUN, CPU,
        ),
        "slow code in the training loop": (Facts(slow_code={"forward": SLOW_CODE._replace(in_loop=True)}), RUN, CPU),
        "slow code on an accelerator": (Facts(slow_code={"forward": SLOW_CODE}), RUN, CUDA),
        "generation": (Facts(**GRPO), grpo(generation=0.8), CPU),
        "generation on an accelerator": (Facts(**GRPO), grpo(generation=0.8), CUDA),
        "generation without vLLM": (Facts(), grpo(generation=0.8), CUDA),
        "rewards": (Facts(), grpo(rewards=0.8), CPU),
        "small batch": (Facts(memory=used(*[0.25, 0.75] * 3), work=PLAIN), RUN, CUDA),
        "small batch, compiled": (Facts(memory=used(*[0.25] * 6), work=replace(PLAIN, compiled=True)), RUN, CUDA),
        "anomalies": (Facts(anomalies=True), None, CPU),
        "too few threads": (Facts(threads=1, free_cpus=6.8), RUN, CPU),
    },
    "sync": {
        "values read": (Facts(work=READ), BETWEEN, CPU),
        "values logged, Trainer": (Facts(log_every=1, **TRAINER), BETWEEN, CPU),
        "values logged, Lightning": (Facts(log_every=1, **LIGHTNING), BETWEEN, CPU),
        "device read": (Facts(work=replace(PLAIN, reads=READS)), RUN, CUDA),
        "NaN filter": (Facts(nan_filter=True, **TRAINER), RUN, CUDA),
        "reductions": (Facts(ddp=True, work=replace(PLAIN, reductions=4)), RUN, CUDA),
        "blocking": (Facts(blocking="CUDA_LAUNCH_BLOCKING"), None, CUDA),
        "blocking, Ascend": (Facts(blocking="ASCEND_LAUNCH_BLOCKING"), None, NPU),
    },
    "stall": {
        "over": (Facts(), replace(RUN, stalls=StallSummary(count=1, seconds=30.0, where=HUNG)), CPU),
        "several, told by another rank": (Facts(), replace(RUN, stalls=StallSummary(count=3, seconds=30.0)), CPU),
        "under way": (
            Facts(), replace(RUN, stalls=StallSummary(count=1, seconds=0.9, under_way=True, where=HUNG)), CPU,
        ),
        "under way, not the first": (
            Facts(), replace(RUN, stalls=StallSummary(count=2, seconds=60.0, under_way=True)), CPU,
        ),
    },
    "recompute": {
        "free memory": (Facts(work=WORK, checkpointing="activation_checkpointing"), RUN, CPU),
        "by the program's own code": (Facts(work=WORK), RUN, CPU),
        "memory unknown": (Facts(work=WORK), RUN, CUDA),
    },
    "padding": {
        "one length": (Facts(batch_lengths=1), summary(useful=0.4), CPU),
        "several lengths": (Facts(batch_lengths=9), summary(useful=0.6), CPU),
    },
    "attention": {"measured": (EAGER, RUN, CPU), "before the run": (EAGER, None, CPU)},
    "optimizer": {"one by one": (ADAMW, summary(optimizer=1.1), CPU)},
    "gc": {
        "by the interpreter": (Facts(gc="observe", collect_seconds=40.0), OFTEN, CPU),
        "by the program": (Facts(gc="observe", collect_seconds=60.0), OFTEN, CPU),
        "by a line": (Facts(collect_line="train.py:9 `main`", collect_seconds=60.0), OFTEN, CPU),
        "objects that stay": (Facts(), scheduled(scheduled_made=7_000_000, scheduled_garbage=17), CPU),
        "garbage": (Facts(), scheduled(scheduled_made=900_000_000, scheduled_garbage=899_000_000), CPU),
        "many objects": (Facts(), scheduled(scheduled_made=900, scheduled_garbage=800), CPU),
        "by the schedule, older journal": (
            Facts(gc="sync"), summary(gc=GARBAGE | {"gc_scheduled_seconds": 90.0}, forward=1.3), CPU,
        ),
    },
    "startup": {
        "before steps": (Facts(), summary(startup=50.0), CPU),
        "first step": (Facts(), FIRST, CPU),
        "first step, a line": (
            Facts(first_seconds={"data": 49.0, "other": 5.0}, first_line="data.py:7 `read`"), FIRST, CPU,
        ),
        "first step, workers": (Facts(workers=2, first_seconds={"data": 49.0, "other": 5.0}), FIRST, CPU),
        "first step on an accelerator": (Facts(first_seconds={"data": 1.0, "forward": 48.0}), FIRST, CUDA),
        "first step, other work": (Facts(first_seconds={"data": 1.0, "other": 53.0}), FIRST, CPU),
        "FLOP counts": (Facts(), summary(spans={"flop_counting": 25.0}), CPU),
        "FLOP counts and the peak": (
            Facts(), replace(summary(spans={"flop_counting": 25.0}), flops=FlopsSummary(peak_measured=True)), CPU,
        ),
    },
    "straggler": {
        cause: (Facts(gc=setting), stragglers(cause.partition(",")[0]), CPU)
        for cause, setting in (("gc", "observe"), ("gc, by the program", "sync"), ("data", "sync"), ("host", "sync"))
    },
    "uneven": {
        "batches": (Facts(), uneven(uneven_batches_seconds=30.0), CPU),
        "stages": (Facts(), uneven(uneven_stages_seconds=20.0), CPU),
    },
    "evaluation": {"often": (Facts(), spans("evaluation"), CPU)},
    "checkpoint": {"often": (Facts(), spans("checkpoint"), CPU)},
    "memory": {
        "leak": (Facts(memory=used(leak=LEAK)), RUN, machine(memory_available=None)),
        "leak that fills the host": (Facts(memory=used(leak=LEAK)), RUN, machine(memory_available=11 * 10**9)),
        "full device": (Facts(memory=used(retries=3, parts=PARTS), expandable=EXPANDABLE), RUN, CUDA),
        "full device, parts unknown": (Facts(memory=used(retries=1), expandable=EXPANDABLE), RUN, CUDA),
        "full device, expandable": (Facts(memory=used(retries=1)), RUN, CUDA),
        "uncached": (Facts(uncached="PYTORCH_NO_CUDA_MEMORY_CACHING"), None, CUDA),
        "uncached, ROCm": (Facts(uncached="PYTORCH_NO_HIP_MEMORY_CACHING"), None, CUDA),
    },
    "precision": {
        "deterministic": (Facts(deterministic=True), None, CUDA),
        "float32": (Facts(work=PLAIN, half="bf16", tf32_possible=True), RUN, CUDA),
        "float32, H200": (Facts(work=GPT2_FP32, half="bf16", tf32_possible=True, peaks=H200), GPT2_RUN, CUDA),
        "TF32, H200": (Facts(work=GPT2_TF32, half="bf16", peaks=H200, **TF32, **TRAINER), GPT2_RUN, CUDA),
        "TF32": (Facts(work=IN_TF32, half="bf16", **TF32), RUN, CUDA),
        "float32, T4": (Facts(work=PLAIN, half="fp16", device_type="cuda"), RUN, CUDA),
        "float32, XPU": (Facts(work=PLAIN, half="bf16", device_type="xpu"), RUN, machine(accelerator="xpu")),
    },
    "compile": {
        "slow": (UNCOMPILED, SLOW, CUDA),
        "once": (Facts(compilations=Compilations(1, 30.0, 0, "")), RUN, CPU),
        "again and again": (Facts(compilations=Compilations(9, 30.0, 7, "size of x changed")), RUN, CPU),
        "again": (Facts(compilations=Compilations(2, 30.0, 1, "")), RUN, CPU),
    },
    "throttle": {
        "heat": (lowered("heat, by the hardware"), RUN, CUDA),
        "heat of unknown temperature": (lowered("heat, by the driver", celsius=None), RUN, CUDA),
        "power supply": (lowered("power brake"), RUN, CUDA),
        "hardware": (lowered("hardware slowdown"), RUN, CUDA),
        "by hand": (lowered("clocks set by hand"), RUN, CUDA),
        "limit set by hand": (lowered("power cap", limit_watts=400.0, default_limit_watts=700.0), RUN, CUDA),
        "limit of the board": (lowered("power cap", mhz=900, limit_watts=700.0, default_limit_watts=700.0), RUN, CUDA),
        "unknown limit": (lowered("power cap", mhz=900), RUN, CUDA),
    },
    "shape": {
        "any size": (Facts(work=LLAMA, tensor_cores=True), RUN, CUDA),
        "size of weights": (
            Facts(work=LLAMA, tensor_cores=True, weights={(10922, 4096): 2, (4096, 10922): 1, (4096, 4096): 4}),
            RUN,
            CUDA,
        ),
        "vocabulary": (
            Facts(
                work=GPT2,
                tensor_cores=True,
                weights={(50257, 768): 1, (3072, 768): 24},
                vocabulary=50257,
                resizable=True,
            ),
            RUN,
            CUDA,
        ),
        "head": (Facts(work=work(("[96, 512, 100] x [96, 100, 512]", 1)), tensor_cores=True, head=100), RUN, CUDA),
        "rows": (
            Facts(work=work(("[8190, 768] x [768, 768]", 1)), tensor_cores=True, weights={(768, 768): 1}), RUN, CUDA,
        ),
        "last wave": (
            Facts(work=work(("[13952, 4096] x [4096, 256]", 60)), tensor_cores=True, multiprocessors=108), RUN, CUDA,
        ),
    },
}  # fmt: skip

EXACT = dict.fromkeys(step_blocks.STAGES, 0.0)
STARTS = summary(data=0.5)
LATE = Facts(workers=2, threads=2, starved_share=0.3)
WHOLE = replace(WORK, by_phase=WORK.by_phase | {"recompute": 270})


def roomy(taken=0.0):
    """Batches of a GB, of which a worker holds four, for a training that takes this many GB."""
    parts = Memory(step=2, device="cpu", weights_gb=1.0, peak_gb=1.0 + taken)
    return replace(HUGE, memory=used(parts=parts), free_cpus=8.0)


NUMBERS = {
    "data": {
        "no workers, exact": (Facts(workers=0, widths=EXACT | {"data": 0.1}), WAITS, CPU),
        "too few workers, exact": (Facts(workers=2, widths=EXACT), WAITS, CPU),
        "free CPUs": (Facts(workers=0, widths=EXACT), STARTS, machine(cpus=2)),
        "a CPU that is free": (Facts(workers=0, widths=EXACT, free_cpus=1.0, idle_share=0.0), STARTS, machine(cpus=2)),
        "a CPU that is hardly free": (Facts(workers=0, widths=EXACT, free_cpus=0.25), STARTS, machine(cpus=2)),
        "a slow disk": (Facts(workers=0, widths=EXACT, free_cpus=0.0, idle_share=1 / 3), STARTS, machine(cpus=2)),
        "a disk": (Facts(workers=0, widths=EXACT, free_cpus=0.25, idle_share=1 / 15), STARTS, machine(cpus=2)),
        "bursts, exact": (replace(BURSTS, widths=EXACT), WAITS, CPU),
        "long bursts": (replace(BURSTS, burst_seconds=12.0), WAITS, CPU),
        "very long bursts": (replace(BURSTS, burst_seconds=1e3), WAITS, CPU),
        "bursts with little memory": (replace(BURSTS, batch_bytes=10**9), WAITS, machine(memory_available=10.5e9)),
        "bursts of workers that are too slow": (replace(BURSTS, calm_share=0.5), WAITS, CPU),
        "perhaps bursts": (replace(BURSTS, calm_share=None), WAITS, CPU),
        "memory": (roomy(), summary(data=3.0), machine(memory_available=40e9)),
        "memory for three": (roomy(), summary(data=3.0), machine(memory_available=13e9)),
        "memory of two ranks": (roomy(), summary(data=3.0), machine(memory_available=26e9, local_ranks=2)),
        "memory that is taken": (roomy(8.0), summary(data=3.0), machine(memory_available=13e9)),
        "no memory": (roomy(), summary(data=3.0), machine(memory_available=1e9)),
        "memory unknown": (roomy(), summary(data=3.0), machine(memory_available=None)),
        "small batches": (replace(roomy(), batch_bytes=None), summary(data=3.0), machine(memory_available=1e9)),
        "a second CPU on a device": (Facts(workers=0, threads=2), WAITS, machine(accelerator="cuda", cpus=2)),
    },
    "cpu": {
        "a CPU for each": (LATE, RUN, machine(cpus=4)),
        "a worker on a CPU": (Facts(workers=1, starved_share=0.3), RUN, machine(cpus=1)),
        "workers beside a device": (LATE, RUN, machine(cpus=2, accelerator="cuda")),
        "waits beside a device": (Facts(starved_share=0.2), BETWEEN, CUDA),
        "workers, other programs unknown": (Facts(workers=2, starved_share=0.3), RUN, machine(cpus=2)),
        "workers, all CPUs left": (Facts(workers=2, left_cpus=2.0, starved_share=0.3), RUN, machine(cpus=2)),
        "workers beside other programs": (Facts(workers=2, left_cpus=1.0, starved_share=0.3), RUN, machine(cpus=2)),
    },
    "host": {
        "between stages, varied": (Facts(widths={"other": 0.25}), BETWEEN, CPU),
        "without a CPU, on a device": (Facts(starved_share=0.2), BETWEEN, CUDA),
        **{
            f"slow code in {stage}, varied": (
                Facts(slow_code={stage: SLOW_CODE}, widths={stage: width, "other": width}), RUN, CPU,
            )
            for stage, width in (("forward", 0.5), ("backward", 0.25), ("optimizer", 0.0))
        },
    },
    "recompute": {
        "exact": (Facts(work=WORK, widths=EXACT), RUN, CPU),
        "more than a forward": (Facts(work=WHOLE), RUN, CPU),
    },
    "padding": {
        "exact": (Facts(widths=EXACT), summary(useful=0.5), CPU),
        "nothing but padding": (Facts(), summary(useful=0.0, forward=90.0), CPU),
        "mostly loading": (Facts(), summary(useful=0.5, data=4.0), CPU),
    },
    "attention": {
        "exact": (replace(EAGER, widths=EXACT), RUN, CPU),
        "narrow heads": (replace(EAGER, widths=EXACT, head=32), RUN, CPU),
        "wide heads": (replace(EAGER, widths=EXACT, head=64), RUN, CPU),
        "wide heads on a device": (replace(EAGER, widths=EXACT, head=64), RUN, CUDA),
    },
    "optimizer": {
        "small tensors": (replace(ADAMW, elements=64.0, update_part=0.8 / 1.1), summary(optimizer=1.1), CPU),
        "large tensors": (replace(ADAMW, elements=1e6, update_part=0.8 / 1.1), summary(optimizer=1.1), CPU),
    },
    "gc": {
        "by the program, beside the schedule": (Facts(gc="sync", collect_seconds=60.0), OFTEN, CPU),
        **{
            f"{made} made, {garbage} garbage": (Facts(), scheduled(scheduled_made=made, scheduled_garbage=garbage), CPU)
            for made, garbage in (
                (12_000_000, 6_000_000),
                (1_010_000_000, 1_000_000_000),
                (2_000_000_000, 1_000_000_000),  # parts of garbage that the collector doesn't count
                (60_000_000, 55_000_000),  # garbage that is slow to free, such as tensors
                (90_000, 100),
            )
        },
    },
    "startup": {
        "as long as the steps": (Facts(), summary(startup=100.0), CPU),
        "first step, loading": (
            Facts(first_seconds={"data": 30.0, "other": 34.0}), summary(spans={"first_step": 51.0}), CPU,  # 5 s startup
        ),
    },
    "memory": {
        "leak in much memory": (Facts(memory=used(leak=LEAK)), RUN, machine(memory_available=900 * 10**9)),
        "leak in no memory": (Facts(memory=used(leak=LEAK)), RUN, machine(memory_available=10**8)),
    },
    "compile": {
        "again, by a size": (Facts(compilations=Compilations(4, 30.0, 3, "tensor 'x' size mismatch")), RUN, CPU),
        "again, by a flag": (Facts(compilations=Compilations(4, 30.0, 3, "training == True")), RUN, CPU),
    },
    "throttle": {
        "power supply in half of the readings": (lowered("power brake", mhz=1188, utilization=0.25), RUN, CUDA),
    },
}  # fmt: skip
"""Cases whose numbers matter: shares, their lower ends, and numbers in sentences."""

PARTS = (CASES, NUMBERS, profiled_cases.CASES)
CASES = {
    cause: PARTS[0].get(cause, {}) | PARTS[1].get(cause, {}) | PARTS[2].get(cause, {}) for cause in PARTS[0] | PARTS[2]
}


INTEGRATIONS = {"Trainer": TRAINER, "Lightning": LIGHTNING, "Accelerate": ACCELERATE}
"""Facts of programs whose remedies have other names."""


def test_every_wording_is_as_in_the_snapshot():
    shown = ""
    for cause, cases in CASES.items():
        for case, (facts, of, on) in cases.items():
            finding = found(cause, facts, of, on)
            assert finding is not None, (cause, case)
            share = "unknown" if finding.share is None else f"{finding.share:.4f}"
            share += "" if finding.low is None else f", at least {finding.low:.4f}"
            shown += f"{cause}: {case}, share {share}\n  {finding.evidence}\n  try {finding.remedy}\n"
            for name, known in INTEGRATIONS.items() if facts.integration == "loop" else ():
                there = found(cause, replace(facts, **known), of, on)
                remedy = "silent" if there is None else f"try {there.remedy}"
                shown += "" if remedy == f"try {finding.remedy}" else f"  {name}: {remedy}\n"
            shown += "\n"
    assert matches(Path(__file__).with_name("wordings.txt"), shown)


def test_a_finding_has_the_line_that_its_sentence_names():
    cases = [(cause, case) for cause, cases in CASES.items() if cause != "stall" for case in cases.values()]
    findings = [found(cause, *case) for cause, case in cases]
    named = [(one.line, match[1]) for one in findings if (match := re.search(r" (\S+\.py:\d+)", one.evidence))]
    assert len(named) > 10
    assert [place for line, place in named if line is None or place not in line] == []
    assert [one.line for one in findings if one.line is not None and one.line not in one.evidence] == []


def causes(rule):
    """Causes that a rule finds in all cases."""
    cases = [case for cases in CASES.values() for case in cases.values()]
    findings = [rule(replace(facts, **vars(on)), None if of is None else Measured(of)) for facts, of, on in cases]
    return {finding.cause for finding in findings if finding is not None}


def test_each_rule_has_a_wording_and_a_row_in_the_page_of_the_verdict():
    rows = re.findall(
        r"^\| (`.+?) \| (`\w+\.\w+`.*?) \|", (DOCS / "verdict.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    page = {rule: {*re.findall(r"\w+", of)} for of, rules in rows for rule in re.findall(r"[\w.]+", rules)}
    rules = {f"{rule.__module__.rpartition('.')[2]}.{rule.__name__}": rule for rule in table.RULES}
    assert page.keys() == rules.keys()
    assert [name for name, rule in rules.items() if not set() < causes(rule) <= page[name]] == []
