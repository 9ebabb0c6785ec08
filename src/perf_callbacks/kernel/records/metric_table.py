"""The registry of metrics, each with its unit and meaning. `make tables` writes the registry into `docs/metrics.md`.

Code that computes a metric uses the name of the metric without a prefix, such as `mfu`. `KEYS` maps each name to the
key with the prefix, such as `perf/mfu`.
"""

from dataclasses import KW_ONLY, dataclass

PREFIX = "perf/"
"""Prefix of the key of each metric."""

RUN = "run/"
"""Second part of the key of an average over a whole run, `perf/run/…`. With the key of a row, an average over a run
would be plotted as one more step."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of a row."""

    name: str
    """Name without prefix."""
    unit: str
    meaning: str
    """How the metric is computed, in Markdown. The documentation and the report show this text."""
    _: KW_ONLY
    left_out: str = ""
    """Work or time that the metric doesn't count, in Markdown."""
    needs: tuple[str, ...] = ()
    """Conditions that a run must meet to have this metric. A known number of samples or tokens may be a condition too,
    but is not listed."""
    main: bool = False
    """True: consoles show the metric, and loggers get it with `metrics="main"`."""
    constant: bool = False
    """True: the metric hardly changes in a run. Loggers get such a metric only in rows in which its value changes."""
    usual: float | None = None
    """Usual value of a constant metric. Loggers don't get this value. None if there is no usual value. For the metric
    `peak_tflops`, the usual value is the first value in a run."""

    @property
    def key(self) -> str:
        """Name by which loggers and rows of the journal know the metric."""
        return PREFIX + self.name


CLOCK, GC, MASK, DEVICES = "host's clock", "`gc`", "attention mask", "several devices"
FLOPS, PEAK, LOWER_BOUND = "`flops`", "a known peak", "a lower bound"
GPU, RANKS, SEVERAL_RANKS = "GPU", "several ranks", "rank 0 of several"
RESUMED = "a resumed run"
JOB, JOB_GPUS = "rank 0 of several, Linux", "rank 0 of several, NVIDIA GPUs"
"""Conditions for `Metric.needs`. `MASK` means that the attention mask consists of integers or booleans. `GC` and
`FLOPS` mean that the setting `gc` or `flops` is not "off"."""

METRICS = (
    Metric("step_time", "s", "seconds per step", left_out="excluded steps", main=True),
    Metric("data_time", "s", "waiting for the loader and copying to the device", main=True),
    Metric("forward_time", "s", "the whole call of the model, with its hooks, and the loss"),
    Metric(
        "backward_time",
        "s",
        "computing gradients. With several ranks, also waiting for other ranks to sum up the gradients",
    ),
    Metric("optimizer_time", "s", "clipping, gradient scaler, optimizer step, scheduler, `zero_grad`"),
    Metric(
        "communication_time",
        "s",
        "time in collectives outside of the backward: waiting for other ranks, or exchanging data. This time is "
        "subtracted from the stage in which it fell",
        needs=(RANKS,),
    ),
    Metric(
        "gc_time",
        "s",
        "garbage collection. This time is subtracted from the stage in which the collection ran",
        needs=(CLOCK, GC),
    ),
    Metric(
        "other_time", "s", "logging, callbacks and the rest of the step. The times of all stages sum to the step time"
    ),
    Metric(
        "samples_per_second",
        "1/s",
        "[samples](#what-is-a-sample) of the batches, divided by the time of the steps. With several ranks: samples "
        "of [all ranks](ranks.md), divided by the time of the slowest rank",
        left_out="excluded steps, evaluations and checkpoints",
        main=True,
    ),
    Metric(
        "tokens_per_second",
        "1/s",
        "[tokens](#what-is-a-token) of the batches, with padding, divided by the time of the steps. With several "
        "ranks: tokens of all ranks, divided by the time of the slowest rank",
        left_out="excluded steps, evaluations and checkpoints",
        main=True,
    ),
    Metric(
        "useful_tokens_per_second",
        "1/s",
        "tokens per second that the attention mask keeps, if its values are integers or booleans",
        needs=(MASK,),
    ),
    Metric("samples_per_second_per_device", "1/s", "samples per second of this rank, per device", needs=(DEVICES,)),
    Metric("tokens_per_second_per_device", "1/s", "tokens per second of this rank, per device", needs=(DEVICES,)),
    Metric(
        "useful_tokens_per_second_per_device",
        "1/s",
        "tokens per second of this rank that the attention mask keeps, per device",
        needs=(DEVICES, MASK),
    ),
    Metric(
        "tflops",
        "TFLOPS",
        "FLOPs of forward and backward per second and device, over the steps whose FLOPs are known",
        left_out="recomputation, the optimizer, and all work that is no matrix product, convolution or attention: "
        "norms, activations, softmax. Products without a formula: the figure is then a lower bound",
        needs=(FLOPS,),
        main=True,
    ),
    Metric(
        "hardware_tflops",
        "TFLOPS",
        "all executed FLOPs per second and device. They include recomputation, by checkpointing and by fused "
        "attention, and the optimizer's matrix products",
        left_out="all work that is no matrix product, convolution or attention. Products without a formula: the "
        "figure is then a lower bound",
        needs=(FLOPS,),
    ),
    Metric(
        "mfu",
        "0 to 1",
        "model FLOPs per second and device (`perf/tflops`), divided by the dense peak of the number format that "
        "carries most FLOPs",
        left_out="as `perf/tflops`",
        needs=(FLOPS, PEAK),
        main=True,
    ),
    Metric(
        "hfu",
        "0 to 1",
        "executed FLOPs per second and device (`perf/hardware_tflops`), divided by the same peak as MFU",
        left_out="as `perf/hardware_tflops`",
        needs=(FLOPS, PEAK),
    ),
    Metric(
        "mfu_mixed",
        "0 to 1",
        "the time that the work would take at peak, each number format at its own peak, divided by the step time; "
        "absent where it equals `perf/mfu`",
        needs=(FLOPS, PEAK),
    ),
    Metric(
        "peak_tflops",
        "TFLOPS",
        "the peak, which is the divisor of MFU and HFU; present only in rows in which it changes",
        needs=(FLOPS, PEAK),
        constant=True,
    ),
    Metric(
        "flops_coverage",
        "0 to 1",
        "the share of the weights that counted operations multiplied. It starts as 1, and is present only in rows in "
        "which it changes",
        needs=(FLOPS,),
        constant=True,
        usual=1.0,
    ),
    Metric(
        "flops_known",
        "0 to 1",
        "the share of the row's steps whose FLOPs are known. It starts as 1, and is present only in rows in which it "
        "changes",
        needs=(FLOPS,),
        constant=True,
        usual=1.0,
    ),
    Metric(
        "flops_lower_bound",
        "flag",
        "1 in the first row whose FLOPs are a lower bound, else absent",
        needs=(FLOPS, LOWER_BOUND),
        constant=True,
    ),
    Metric(
        "flops_counted_once",
        "flag",
        "1 while no second count of equal work has agreed with the first, else absent. Step 11 is counted again",
        needs=(FLOPS,),
    ),
    Metric("gc_pause", "s", "the longest garbage collection in the row's steps", needs=(GC,)),
    Metric(
        "gc_loss",
        "s",
        "the time of all garbage collections in the row's steps",
        left_out="collections outside of steps, which the table at the end counts",
        needs=(GC,),
    ),
    Metric(
        "memory_allocated_peak_gb",
        "GB",
        "the most memory that tensors held at once in the run so far",
        left_out="memory outside of torch's allocator: context, libraries, communicators",
        needs=(GPU,),
    ),
    Metric("memory_reserved_gb", "GB", "memory that torch's allocator holds, used or free", needs=(GPU,)),
    Metric(
        "allocator_retries",
        "count",
        "how often in the row's steps the allocator was full, gave memory back and tried again",
        needs=(GPU,),
    ),
    Metric(
        "straggler_loss",
        "s",
        "seconds that the job lost to [slow ranks](stragglers.md), in the windows that were compared since the last "
        "row",
        left_out="uneven batches and uneven stages of a pipeline, for which no rank is to blame",
        needs=(SEVERAL_RANKS,),
    ),
    Metric(
        "ettr",
        "0 to 1",
        "effective training time ratio: the time of all steps that survive, divided by the time since the first start "
        "of the run, with the time between attempts ([goodput](goodput.md))",
        left_out="steps that were lost because the run was resumed from an older checkpoint",
        needs=(RESUMED,),
    ),
    Metric(
        "job_cpu_cores",
        "count",
        "CPU cores that all ranks keep busy, with their loader workers. This metric and the next five are means or "
        "maxima of readings every ten seconds in [the last window](ranks.md)",
        needs=(JOB,),
    ),
    Metric(
        "job_resident_gb",
        "GB",
        "host memory of all ranks, with their workers; shared memory counts for each process",
        needs=(JOB,),
    ),
    Metric("job_gpu_utilization", "0 to 1", "utilization of a GPU, mean of all ranks", needs=(JOB_GPUS,)),
    Metric("job_gpu_utilization_min", "0 to 1", "utilization of a GPU, lowest of all ranks", needs=(JOB_GPUS,)),
    Metric("job_gpu_memory_max_gb", "GB", "memory in use on the fullest GPU", needs=(JOB_GPUS,)),
    Metric(
        "job_power_watts", "W", "power of the GPUs of all ranks; unknown if processes share a GPU", needs=(JOB_GPUS,)
    ),
)

BY_NAME = {metric.name: metric for metric in METRICS}

KEYS = {
    "row": {metric.name: metric.key for metric in METRICS},
    "whole": {metric.name: PREFIX + RUN + metric.name for metric in METRICS},
}
"""Keys of all metrics by name: "row" for the keys in a row, "whole" for the keys of averages over the fit."""
