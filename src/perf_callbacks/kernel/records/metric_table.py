"""The registry of metrics, each with its unit and meaning. `make tables` writes the registry into `docs/metrics.md`.

Code that computes metrics returns them by name, without prefix. `KEYS` adds the prefix, and has no other names.
"""

from dataclasses import dataclass

PREFIX = "perf/"
"""Begins the key of each metric."""

RUN = "run/"
"""Begins the rest of the key of an average over a whole run, `perf/run/…`. Under the key of a row, a plot would show
the average as one more step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One metric of a row."""

    name: str
    """Name without prefix."""
    unit: str
    meaning: str
    """Sentence for the documentation, in Markdown."""
    needs: tuple[str, ...] = ()
    """Conditions that a run must meet to have this metric. Known samples and tokens, which some metrics also need, are
    not listed."""
    main: bool = False
    """True: consoles show the metric, and loggers get it with `metrics="main"`."""
    constant: bool = False
    """True: the metric hardly changes in a run. Loggers get it only where it changes."""
    usual: float | None = None
    """Usual value of a constant: loggers don't get it. None: there is no such value. For the peak, its first value
    counts as usual."""

    @property
    def key(self) -> str:
        """Name by which loggers and rows of the journal know the metric."""
        return PREFIX + self.name

    @property
    def run_key(self) -> str:
        """Name of the average over a run."""
        return PREFIX + RUN + self.name


CLOCK, GC, MASK, DEVICES = "host's clock", "`gc`", "attention mask", "several devices"
FLOPS, PEAK, LOWER_BOUND = "`flops`", "a known peak", "a lower bound"
GPU, RANKS, SEVERAL_RANKS = "GPU", "several ranks", "rank 0 of several"
"""Needs of metrics. `MASK` is a mask of integers or booleans; `GC` and `FLOPS` are settings other than "off"."""

METRICS = (
    Metric(name="step_time", unit="s", meaning="seconds per step", main=True),
    Metric(name="data_time", unit="s", meaning="waiting for the loader and copying to the device", main=True),
    Metric(name="forward_time", unit="s", meaning="the whole call of the model, with its hooks, and the loss"),
    Metric(name="backward_time", unit="s", meaning="the backward"),
    Metric(
        name="optimizer_time", unit="s", meaning="clipping, gradient scaler, optimizer step, scheduler, `zero_grad`"
    ),
    Metric(
        name="communication_time",
        unit="s",
        meaning="blocked in collectives outside of the backward: waiting for other ranks, or exchanging data. Its time "
        "is not part of the stage in which it fell",
        needs=(RANKS,),
    ),
    Metric(
        name="gc_time",
        unit="s",
        meaning="garbage collection. Its time is not part of the stage in which it ran",
        needs=(CLOCK, GC),
    ),
    Metric(
        name="other_time",
        unit="s",
        meaning="logging, callbacks and the rest. These times sum to the step time",
    ),
    Metric(
        name="samples_per_second",
        unit="1/s",
        meaning="[samples](#what-is-a-sample) of the batches. With several ranks, of [all ranks](ranks.md)",
        main=True,
    ),
    Metric(
        name="tokens_per_second",
        unit="1/s",
        meaning="[tokens](#what-is-a-token) of the batches, of all ranks too",
        main=True,
    ),
    Metric(
        name="useful_tokens_per_second",
        unit="1/s",
        meaning="tokens that the attention mask keeps, if its values are integers or booleans",
        needs=(MASK,),
    ),
    Metric(
        name="samples_per_second_per_device",
        unit="1/s",
        meaning="samples of this rank, per device",
        needs=(DEVICES,),
    ),
    Metric(
        name="tokens_per_second_per_device",
        unit="1/s",
        meaning="tokens of this rank, per device",
        needs=(DEVICES,),
    ),
    Metric(
        name="useful_tokens_per_second_per_device",
        unit="1/s",
        meaning="tokens of this rank that the attention mask keeps, per device",
        needs=(DEVICES, MASK),
    ),
    Metric(
        name="tflops",
        unit="TFLOPS",
        meaning="FLOPs of forward and backward per second and device, over the steps whose FLOPs are known",
        needs=(FLOPS,),
        main=True,
    ),
    Metric(
        name="hardware_tflops",
        unit="TFLOPS",
        meaning="the same with all executed FLOPs: also recomputation by checkpointing and fused attention, and the "
        "optimizer's products",
        needs=(FLOPS,),
    ),
    Metric(
        name="mfu",
        unit="0 to 1",
        meaning="`perf/tflops` divided by the dense peak of the number format that carries most FLOPs",
        needs=(FLOPS, PEAK),
        main=True,
    ),
    Metric(name="hfu", unit="0 to 1", meaning="`perf/hardware_tflops` divided by the same peak", needs=(FLOPS, PEAK)),
    Metric(
        name="mfu_mixed",
        unit="0 to 1",
        meaning="the time that the work would take at peak, each number format at its own peak, divided by the step "
        "time; absent where it equals `perf/mfu`",
        needs=(FLOPS, PEAK),
    ),
    Metric(
        name="peak_tflops",
        unit="TFLOPS",
        meaning="the peak that MFU and HFU are divided by; only in a row in which it changes",
        needs=(FLOPS, PEAK),
        constant=True,
    ),
    Metric(
        name="flops_coverage",
        unit="0 to 1",
        meaning="the share of the weights that were seen to be multiplied; only in a row in which it changes, from 1 "
        "at first",
        needs=(FLOPS,),
        constant=True,
        usual=1.0,
    ),
    Metric(
        name="flops_known",
        unit="0 to 1",
        meaning="the share of the row's steps with known FLOPs; only in a row in which it changes, from 1 at first",
        needs=(FLOPS,),
        constant=True,
        usual=1.0,
    ),
    Metric(
        name="flops_lower_bound",
        unit="flag",
        meaning="1 in the first row whose FLOPs are a lower bound, else absent",
        needs=(FLOPS, LOWER_BOUND),
        constant=True,
    ),
    Metric(name="gc_pause", unit="s", meaning="the longest collection in the row's steps", needs=(GC,)),
    Metric(
        name="gc_loss",
        unit="s",
        meaning="the sum of the collections in the row's steps. The table at the end also counts collections outside "
        "of steps",
        needs=(GC,),
    ),
    Metric(
        name="memory_allocated_peak_gb",
        unit="GB",
        meaning="the largest sum of all tensors in the run so far",
        needs=(GPU,),
    ),
    Metric(name="memory_reserved_gb", unit="GB", meaning="memory that the allocator holds", needs=(GPU,)),
    Metric(
        name="allocator_retries",
        unit="count",
        meaning="how often, in the row, the allocator was full, gave memory back and tried again",
        needs=(GPU,),
    ),
    Metric(
        name="straggler_loss",
        unit="s",
        meaning="seconds that the job lost to [slow ranks](stragglers.md), in the windows that were compared since "
        "the last row",
        needs=(SEVERAL_RANKS,),
    ),
)

KEYS = {
    "row": {metric.name: metric.key for metric in METRICS},
    "whole": {metric.name: metric.run_key for metric in METRICS},
}
"""Keys of metrics by name, for a row and for the whole fit."""
