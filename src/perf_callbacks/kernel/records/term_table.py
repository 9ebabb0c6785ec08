"""Glossary of the documentation and the report: words, each with its meaning.

`make tables` writes the glossary into `docs/metrics.md`, and the report shows the meanings of the words that it uses.
The words for metrics and stages take their meaning from the registry of metrics.
"""

from dataclasses import KW_ONLY, dataclass

from perf_callbacks.kernel.records.metric_table import BY_NAME


@dataclass(frozen=True, slots=True)
class Term:
    """One word of the glossary."""

    name: str
    meaning: str
    """Meaning of the word in Markdown, without a full stop at the end."""
    _: KW_ONLY
    forms: tuple[str, ...] = ()
    """Other forms of the word, such as plurals."""


def _metric(name: str, metric: str) -> Term:
    return Term(name, BY_NAME[metric].meaning)


TERMS = (
    Term(
        "step",
        "an optimizer step: from the end of one step to the end of the next, with all micro-batches, the loader, "
        "logging and other callbacks, without evaluations and checkpoints",
        forms=("steps",),
    ),
    _metric("step time", "step_time"),
    Term(
        "excluded step",
        "a step that counts in no mean and no rate: the first step, and steps with a FLOP count, an evaluation, a "
        "checkpoint, a restart or a suspension",
        forms=("excluded steps",),
    ),
    Term("rank", "one of the processes that train together, by its number from 0", forms=("ranks",)),
    Term("attempt", "one start of a run. A run that is resumed from a checkpoint has several", forms=("attempts",)),
    Term(
        "stage",
        "a part of a step: data, forward, backward, optimizer, communication, gc or other. The stages of a step sum "
        "to the step",
        forms=("stages",),
    ),
    _metric("data", "data_time"),
    _metric("forward", "forward_time"),
    _metric("backward", "backward_time"),
    _metric("optimizer", "optimizer_time"),
    _metric("communication", "communication_time"),
    _metric("gc", "gc_time"),
    _metric("other", "other_time"),
    Term("window", "some steps, 50 unless set, after which ranks exchange their times and amounts", forms=("windows",)),
    Term("FLOPs", "an amount of work: the number of additions and multiplications of floating-point numbers"),
    Term(
        "TFLOPS",
        "a rate: 10^12 FLOPs per second; GFLOPS 10^9, MFLOPS 10^6, kFLOPS 10^3. " + BY_NAME["tflops"].meaning,
        forms=("GFLOPS", "MFLOPS", "kFLOPS", "FLOPS"),
    ),
    Term("model FLOPs", "FLOPs of the forward and the backward, each counted once, even if parts are computed twice"),
    Term(
        "executed FLOPs",
        "model FLOPs, and FLOPs of what is computed again by checkpointing and by fused attention",
        forms=("hardware FLOPs",),
    ),
    Term("recomputation", "parts of the forward that are computed again in the backward, to save memory"),
    Term(
        "peak",
        "the highest FLOPs per second of a device in a number format, for dense matrices: from the table of peaks, "
        "set by `peak_tflops`, or measured with matrix products",
    ),
    _metric("MFU", "mfu"),
    _metric("HFU", "hfu"),
    Term("lower bound", "a figure marked ≥: part of the work has no formula, so the true figure is larger"),
    Term(
        "could save",
        "the largest share of the wall time after startup that the remedy could save. 20 % is 1.25 times as fast",
    ),
    Term("straggler", "a rank, or a set of ranks, that the other ranks wait for", forms=("stragglers",)),
    Term(
        "uneven",
        "work that differs between ranks, such as batches of different lengths: no rank is slow, but ranks wait",
    ),
    Term("stall", "a time in which no step ends, longer than the setting `stall_after`", forms=("stalls",)),
    Term("drift", "steps that become longer in the course of a run"),
    Term(
        "garbage collection",
        "Python's search for objects that only refer to each other",
        forms=("collection", "collections"),
    ),
    Term("wall time", "all time that has passed since measuring began"),
    Term("startup", "the checklist and the rest of the callback's setup, before the first step"),
    Term(
        "FLOP counting",
        "the extra time of steps with a FLOP count, compared with the mean step, and the measurement of a peak",
        forms=("FLOP count",),
    ),
    Term(
        "own work", "the checklist's first full garbage collection and similar work of the callback that is in no step"
    ),
    Term(
        "suspended",
        "the extra time of steps during which the whole process was suspended, compared with the mean step",
    ),
    Term("weights", "parameters and buffers"),
    Term("gradients", "gradients of trained parameters, when an optimizer is about to step"),
    Term("activations", "tensors that the forward made and that are alive when the backward begins"),
    Term("temporary", "all other tensors that the step makes and frees, at their largest sum"),
    Term("context", "on an NVIDIA GPU, memory outside of torch's allocator: CUDA, libraries, communicators"),
    Term("median", "the middle value: half of the steps take less, half take more", forms=("medians",)),
    Term(
        "checklist",
        "the changes that the callback makes or advises when training starts, such as collecting garbage at set steps",
    ),
)
