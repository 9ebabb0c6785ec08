"""Rules about accelerators and their settings: where each speaks and with which sentence, and where it must not."""

from dataclasses import replace

import pytest
from advised import PLAIN, WORK, found, machine, summary

from perf_callbacks.advice.facts import Facts
from perf_callbacks.kernel.records.fit_records import Finding
from perf_callbacks.kernel.records.summary_parts import FlopsSummary
from perf_callbacks.memory.use import MemoryUse

CUDA = machine(accelerator="cuda")
READS = {"/home/a/train.py:41": 3, "/home/a/train.py:7": 1, "/env/site-packages/transformers/trainer.py:9": 8}
RATED = {"flops": FlopsSummary(hardware_flops=100, seconds=1.0, peak_flops_per_second=400.0)}


def busy(*readings):
    """The use of a GPU, as NVML gave it."""
    use = MemoryUse()
    for reading in readings:
        use.saw_gpu(reading)
    return use


SPEAKS = {
    "deterministic": (
        Facts(deterministic=True),
        None,
        Finding(
            cause="precision",
            share=None,
            evidence="Deterministic algorithms are on, which are slower",
            remedy="torch.use_deterministic_algorithms(False)",
        ),
    ),
    "deterministic in Lightning": (
        Facts(deterministic=True, integration="lightning"),
        None,
        Finding(
            cause="precision",
            share=None,
            evidence="Deterministic algorithms are on, which are slower",
            remedy="Trainer(deterministic=False)",
        ),
    ),
    "uncached": (
        Facts(uncached=True),
        None,
        Finding(
            cause="memory",
            share=None,
            evidence="PYTORCH_NO_CUDA_MEMORY_CACHING is set: torch asks the driver for the memory of each tensor",
            remedy="unsetting PYTORCH_NO_CUDA_MEMORY_CACHING",
        ),
    ),
    "compile": (
        Facts(tensor_cores=True, work=replace(PLAIN, by_dtype={"bfloat16": 1})),
        replace(summary(), **RATED),
        Finding(
            cause="compile",
            share=None,
            evidence="Nothing is compiled, and HFU is 25%",
            remedy="torch.compile(model)",
        ),
    ),
    "compile in the Trainer": (
        Facts(tensor_cores=True, work=replace(PLAIN, by_dtype={"bfloat16": 1}), integration="transformers"),
        replace(summary(), **RATED),
        Finding(
            cause="compile",
            share=None,
            evidence="Nothing is compiled, and HFU is 25%",
            remedy="TrainingArguments(torch_compile=True)",
        ),
    ),
    "reads": (
        Facts(work=replace(PLAIN, reads=READS)),
        summary(),
        Finding(
            cause="sync",
            share=None,
            evidence="The host waits for the device 3 times per step, to read from it in train.py:41",
            remedy="keeping values on the device until they are logged",
        ),
    ),
    "nan filter": (
        Facts(nan_filter=True, integration="transformers"),
        summary(),
        Finding(
            cause="sync",
            share=None,
            evidence="logging_nan_inf_filter reads the loss from the device in each micro-batch",
            remedy="TrainingArguments(logging_nan_inf_filter=False)",
        ),
    ),
    "small batch": (
        Facts(memory=busy(*[0.25, 0.75] * 3), work=PLAIN),
        summary(),
        Finding(
            cause="host",
            share=pytest.approx(0.5),
            evidence="The device was idle for 50% of the run while Python prepared its operations",
            remedy='larger micro-batches, or torch.compile(model, mode="reduce-overhead")',
        ),
    ),
    "small batch of a compiled model": (
        Facts(memory=busy(*[0.25] * 6), work=replace(PLAIN, compiled=True)),
        summary(data=1.0),
        Finding(
            cause="host",
            share=pytest.approx(0.25),  # the device may have been idle while the step waited for data
            evidence="The device was idle for 25% of the run while Python prepared its operations",
            remedy="larger micro-batches",
        ),
    ),
    "reductions": (
        Facts(ddp=True, work=replace(PLAIN, reductions=4)),
        summary(),
        Finding(
            cause="sync",
            share=None,
            evidence="DDP reduces gradients after each of 4 micro-batches of a step",
            remedy="with model.no_sync(): around all micro-batches but the last",
        ),
    ),
    "reductions with Accelerate": (
        Facts(ddp=True, work=replace(PLAIN, reductions=2), integration="accelerate"),
        summary(),
        Finding(
            cause="sync",
            share=None,
            evidence="DDP reduces gradients after each of 2 micro-batches of a step",
            remedy="with accelerator.accumulate(model):",
        ),
    ),
}

SILENT = {
    "deterministic on a CPU": ("precision", Facts(deterministic=True), None, machine()),
    "uncached on a CPU": ("memory", Facts(uncached=True), None, machine()),
    "cached": ("memory", Facts(expandable=True), summary(), CUDA),
    "compiled": (
        "compile",
        Facts(tensor_cores=True, work=replace(PLAIN, compiled=True)),
        replace(summary(), **RATED),
        CUDA,
    ),
    "busy without a compiler": (
        "compile",
        Facts(tensor_cores=True, work=PLAIN),
        replace(summary(), flops=replace(RATED["flops"], peak_flops_per_second=200.0)),
        CUDA,
    ),
    "busy but for the loader": (
        "compile",
        Facts(tensor_cores=True, work=PLAIN),
        replace(summary(data=1.0), **RATED),
        CUDA,
    ),
    "no peak": ("compile", Facts(tensor_cores=True, work=PLAIN), summary(), CUDA),
    "no tensor cores": ("compile", Facts(work=PLAIN), replace(summary(), **RATED), CUDA),
    "reads on a CPU": ("sync", Facts(work=replace(PLAIN, reads=READS)), summary(), machine()),
    "reads of packages": (
        "sync",
        Facts(work=replace(PLAIN, reads={"/env/site-packages/torchmetrics/a.py:9": 8})),
        summary(),
        CUDA,
    ),
    "nan filter on a CPU": ("sync", Facts(nan_filter=True), summary(), machine()),
    "no nan filter": ("sync", Facts(), summary(), CUDA),
    "batch that fills the device": ("host", Facts(memory=busy(*[0.95] * 6)), summary(), CUDA),
    "use that was hardly read": ("host", Facts(memory=busy(*[0.5] * 5)), summary(), CUDA),
    "use that nobody tells": ("host", Facts(memory=busy()), summary(), CUDA),
    "use of a GPU that trains nothing": ("host", Facts(memory=busy(*[0.5] * 6)), summary(), machine()),
    "idle while it waits for data": ("host", Facts(memory=busy(*[0.5] * 6)), summary(data=1.0), CUDA),
    "one reduction": ("sync", Facts(ddp=True, work=replace(PLAIN, reductions=1)), summary(), CUDA),
    "sums that are not DDP's": ("sync", Facts(work=replace(PLAIN, reductions=4)), summary(), CUDA),
}


@pytest.mark.parametrize("case", SPEAKS)
def test_it_speaks(case):
    facts, of, expected = SPEAKS[case]
    assert found(expected.cause, facts, of, CUDA) == expected


@pytest.mark.parametrize("case", SILENT)
def test_it_is_silent(case):
    cause, facts, of, on = SILENT[case]
    assert found(cause, facts, of, on) is None


TENSOR_CORES = machine(accelerator="cuda")
LLAMA = replace(
    WORK,
    by_phase={},
    by_dtype={"bfloat16": 100},
    products=(
        ("aten::mm", "[8192, 4096] x [4096, 10922]", "bfloat16", 60),
        ("aten::mm", "[8192, 4096] x [4096, 4096]", "bfloat16", 40),
    ),
)
RIGHT = replace(LLAMA, products=(("aten::bmm", "[3, 8192, 4096] x [3, 4096, 11008]", "bfloat16", 60),))


def test_a_size_that_tensor_cores_can_not_use_well():
    finding = found("shape", Facts(work=LLAMA, tensor_cores=True), summary(), TENSOR_CORES)
    assert finding == Finding(
        cause="shape",
        share=None,
        evidence="The size 10,922 is no multiple of 8, in products with 60% of the FLOPs",
        remedy="padding it to 10,944",
    )


@pytest.mark.parametrize("facts", [Facts(work=RIGHT, tensor_cores=True), Facts(work=LLAMA), Facts(tensor_cores=True)])
def test_no_complaint_about_sizes_that_are_right_or_do_not_matter(facts):
    assert found("shape", facts, summary(), TENSOR_CORES) is None


@pytest.mark.parametrize(
    ("changes", "evidence", "remedy"),
    [
        ({}, "100% of the FLOPs are float32, without TF32", 'torch.set_float32_matmul_precision("high")'),
        ({"tf32": True}, "100% of the FLOPs are float32, in TF32", 'bf16: torch.autocast("cuda", torch.bfloat16)'),
        (
            {"tf32": True, "integration": "transformers"},
            "100% of the FLOPs are float32, in TF32",
            "TrainingArguments(bf16=True)",
        ),
        (
            {"tf32": True, "integration": "lightning"},
            "100% of the FLOPs are float32, in TF32",
            'Trainer(precision="bf16-mixed")',
        ),
    ],
)
def test_a_format_that_tensor_cores_are_slow_in(changes, evidence, remedy):
    finding = found("precision", Facts(work=PLAIN, tensor_cores=True, **changes), summary(), TENSOR_CORES)
    assert (finding.share, finding.evidence, finding.remedy) == (None, evidence, remedy)


@pytest.mark.parametrize("facts", [Facts(work=LLAMA, tensor_cores=True), Facts(work=PLAIN), Facts(tensor_cores=True)])
def test_a_format_that_is_right_or_does_not_matter_is_no_finding(facts):
    assert found("precision", facts, summary(), TENSOR_CORES) is None


PADDED = (
    "model.resize_token_embeddings(pad_to_multiple_of=64), which takes its weights from 38,597,376 to 38,633,472 "
    "parameters"
)
GPT2 = replace(
    LLAMA,
    products=(
        ("aten::mm", "[8192, 768] x [768, 50257]", "bfloat16", 60),
        ("aten::mm", "[8192, 768] x [768, 3072]", "bfloat16", 40),
    ),
)


@pytest.mark.parametrize(
    ("changes", "evidence", "remedy"),
    [
        (
            {"work": LLAMA, "weights": {(10922, 4096): 2, (4096, 10922): 1, (4096, 4096): 4}},
            "The size 10,922 is no multiple of 8, in products with 60% of the FLOPs",
            "padding it to 10,944, which takes its weights from 134,209,536 to 134,479,872 parameters",
        ),
        (
            {"work": GPT2, "weights": {(50257, 768): 1, (3072, 768): 24}, "vocabulary": 50257},
            "The vocabulary of 50,257 is no multiple of 8, in products with 60% of the FLOPs",
            PADDED,
        ),
        (
            {
                "work": replace(LLAMA, products=(("aten::bmm", "[96, 512, 100] x [96, 100, 512]", "bfloat16", 1),)),
                "head": 100,
            },
            "The head size 100 is no multiple of 8, in products with 100% of the FLOPs",
            "another number of heads: 64 and 128 are good sizes",
        ),
        (
            {
                "work": replace(LLAMA, products=(("aten::mm", "[8190, 768] x [768, 768]", "bfloat16", 1),)),
                "weights": {(768, 768): 1},
            },
            "The size 8,190 is no multiple of 8, in products with 100% of the FLOPs",
            "pad_to_multiple_of=8 in the collator, or another size of the batch",
        ),
    ],
)
def test_the_size_is_named_with_its_price(changes, evidence, remedy):
    finding = found("shape", Facts(tensor_cores=True, **changes), summary(), TENSOR_CORES)
    assert (finding.share, finding.evidence, finding.remedy) == (None, evidence, remedy)


WAVES = replace(LLAMA, products=(("aten::mm", "[13952, 4096] x [4096, 256]", "bfloat16", 60),))


def test_a_last_wave_that_is_nearly_empty():
    finding = found("shape", Facts(tensor_cores=True, work=WAVES, multiprocessors=108), summary(), TENSOR_CORES)
    assert finding.evidence == (
        "A product of 13,952 rows with 100% of the FLOPs has 109 tiles for 108 multiprocessors: 2 waves, 50.5% busy"
    )
    assert finding.remedy == "micro-batches of 13,824 rows (samples or tokens)"


@pytest.mark.parametrize(
    "changes",
    [
        {"multiprocessors": 109},
        {"multiprocessors": None},
        {"tensor_cores": False},
        {"work": None},
        {"weights": {(13952, 4096): 1}},  # the rows are no samples
        {"work": replace(WAVES, products=(("aten::mm", "[13824, 4096] x [4096, 256]", "bfloat16", 60),))},
        {"work": replace(WAVES, products=(*WAVES.products, ("aten::mm", "[64, 64] x [64, 64]", "bfloat16", 600)))},
    ],
)
def test_waves_that_are_full_or_do_not_matter(changes):
    facts = Facts(**{"tensor_cores": True, "work": WAVES, "multiprocessors": 108} | changes)
    assert found("shape", facts, summary(), TENSOR_CORES) is None
