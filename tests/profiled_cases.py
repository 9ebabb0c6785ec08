"""Facts with a profile, by the cause that the rules find."""

from dataclasses import replace

from advised import PLAIN, collective, copy, machine, profile, summary

from perf_callbacks.advice.facts import Facts, SlowCode
from perf_callbacks.kernel.engine.account import CHECKPOINT, EVALUATION
from perf_callbacks.kernel.fit.rarer import Rarer
from perf_callbacks.kernel.records.summary_parts import StragglerSummary

CPU, CUDA = machine(), machine(accelerator="cuda")
RUN, BETWEEN = summary(), summary(other=0.5)
UNKNOWN = Facts()
DDP = Facts(ddp=True, tensors=100, elements=1e5)
TRAINER = {
    "integration": "transformers",
    "options": dict.fromkeys(
        (
            "dataloader_num_workers", "dataloader_prefetch_factor", "dataloader_persistent_workers", "logging_steps",
            "train_sampling_strategy", "optim", "bf16", "fp16", "torch_compile", "torch_compile_mode",
            "ddp_bucket_cap_mb", "activation_checkpointing",
        ),
        "TrainingArguments",
    ),
    "rarer": {
        EVALUATION: Rarer("TrainingArguments(eval_steps={steps})"),
        CHECKPOINT: Rarer("TrainingArguments(save_steps={steps})", multiple=4),
    },
}  # fmt: skip
GRPO = {
    "integration": "transformers",
    "options": dict.fromkeys(("use_vllm", "num_generations", "max_completion_length"), "GRPOConfig"),
}
LIGHTNING = {
    "integration": "lightning",
    "options": dict.fromkeys(
        ("log_every_n_steps", "num_sanity_val_steps", "precision", "deterministic", "detect_anomaly"), "Trainer"
    )
    | {"bucket_cap_mb": "DDPStrategy"},
    "rarer": {
        EVALUATION: Rarer("Trainer(check_val_every_n_epoch={times})"),
        CHECKPOINT: Rarer("ModelCheckpoint(every_n_epochs={times})", value=2),
    },
}
ACCELERATE = {
    "integration": "accelerate",
    "options": {"mixed_precision": "Accelerator", "bucket_cap_mb": "DistributedDataParallelKwargs"},
}
LOST = StragglerSummary(steps=100, seconds=100.0, seconds_by_cause={"host": 12.0}, uneven_batches_seconds=4.0)
WAITING = replace(RUN, stragglers=LOST)
"""A fit that waited for slow ranks for 16% of its steps."""
LATE = {"idle": {"host": 0.4}}
FUSIBLE, HALF = {"classes": {"elementwise": 0.3}}, {"classes": {"elementwise": 0.5}}
SLOW_CODE = SlowCode("train.py:31 `loss_of`", 9, 20, 30)
READS = {"/home/a/train.py:41": 3, "/home/a/train.py:7": 1, "/env/site-packages/transformers/trainer.py:9": 8}


def profiled(facts=UNKNOWN, **known):
    """Facts with a profile."""
    return replace(facts, profiles=(profile(**known),))


def waited(place, facts=UNKNOWN, **known):
    """Facts with a profile in which the host waited for the device."""
    return profiled(facts, idle={"sync": 0.2}, sync={place: 0.2}, **known)


def reduced(facts=DDP, calls=5, name="ncclDevKernel_AllReduce", exposed=0.2, **known):
    """Facts with a profile in which collectives ran."""
    operations = (collective(name, calls, exposed),)
    return profiled(facts, classes={"communication": exposed}, operations=operations, **known)


CASES = {
    "communication": {
        "few buckets": (reduced(calls=2), RUN, CUDA),
        "many buckets": (reduced(calls=2000), RUN, CUDA),
        "DDP": (reduced(), RUN, CUDA),
        "accumulation": (reduced(replace(DDP, work=replace(PLAIN, reductions=4))), RUN, CUDA),
        "FSDP": (reduced(Facts(), name="ncclDevKernel_AllGather_RING_LL"), RUN, CUDA),
        "FSDP, more than computation": (reduced(Facts(), name="ncclDevKernel_AllGather", exposed=0.8), RUN, CUDA),
        "many collectives": (reduced(UNKNOWN, calls=2000), RUN, CUDA),
        "other collectives": (reduced(Facts(), name="ncclDevKernel_SendRecv"), RUN, CUDA),
        "more than computation": (reduced(Facts(), name="ncclDevKernel_SendRecv", exposed=0.8), RUN, CUDA),
        "hidden computation": (reduced(Facts(), exposed=0.6, name="ncclDevKernel_SendRecv"), RUN, CUDA),
        "a slow network": (reduced(exposed=0.25), RUN, CUDA),
        "a network and slow ranks": (reduced(exposed=0.25), WAITING, CUDA),
        "on a CPU": (reduced(Facts(), name="gloo:all_reduce", timeline="cpu"), RUN, CPU),
    },
    "compile": {
        "by a profile": (profiled(**FUSIBLE), RUN, CUDA),
        "by a profile of one step": (profiled(**FUSIBLE, steps=1), RUN, CUDA),
        "by the profile most like usual steps": (
            Facts(profiles=(profile(step=3.0, **FUSIBLE), profile(**HALF), profile(step=0.1))), RUN, CUDA,
        ),
        "by a profile, beside evaluations": (profiled(**HALF), summary(spans={"evaluation": 100.0}), CUDA),
    },
    "copy": {
        "layout": (profiled(copies=[copy("layout", 0.1)]), RUN, CUDA),
        "layout on a CPU, with a line": (
            profiled(timeline="cpu", copies=[copy("layout", 0.1, line="train.py(7): attend")]), RUN, CPU,
        ),
        "without another layout": (profiled(copies=[copy("device to device", 0.1, "aten::clone")]), RUN, CUDA),
        "layout in longer steps": (profiled(timeline="cpu", step=1.8, copies=[copy("layout", 0.36)]), RUN, CPU),
        "from the host": (profiled(copies=[copy("host to device", 0.1, "aten::to", calls=1)]), RUN, CUDA),
        "to the host": (profiled(copies=[copy("device to host", 0.1, "aten::to", calls=1)]), RUN, CUDA),
    },
    "data": {
        "by a profile": (profiled(idle={"data": 0.4}), BETWEEN, CUDA),
        "by a profile on a CPU": (profiled(timeline="cpu", idle={"data": 0.4}), BETWEEN, CPU),
    },
    "host": {
        "launches": (profiled(**LATE), RUN, CUDA),
        "launches of a compiled model": (profiled(Facts(work=replace(PLAIN, compiled=True)), **LATE), RUN, CUDA),
        "other work": (profiled(**LATE, kernels=500), RUN, CUDA),
        "launches in shorter steps": (profiled(step=0.8, idle={"host": 0.2}), RUN, CUDA),
        "launches in longer steps": (profiled(step=1.2, idle={"host": 0.6}), RUN, CUDA),
        "slow code, by a profile": (profiled(Facts(slow_code={"forward": SLOW_CODE}), **LATE), RUN, CUDA),
    },
    "sync": {
        "by a profile": (waited("aten::item"), RUN, CUDA),
        "by a profile, a line": (waited("aten::item", Facts(work=replace(PLAIN, reads=READS))), RUN, CUDA),
        "by a profile, copies": (waited("aten::to"), RUN, CUDA),
        "by a profile, synchronize": (waited("cudaDeviceSynchronize", Facts(device_type="cuda")), RUN, CUDA),
        "by a profile, unknown shape": (waited("aten::nonzero"), RUN, CUDA),
        "by a profile, NaN filter": (waited("aten::is_nonzero", Facts(nan_filter=True)), RUN, CUDA),
    },
}  # fmt: skip
"""By cause and name: facts, summary and machine."""
