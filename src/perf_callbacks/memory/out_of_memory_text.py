"""The report of a failed allocation, for the log and for `perf-callbacks memory`."""

from collections.abc import Iterator

from perf_callbacks.kernel.plural import plural
from perf_callbacks.kernel.records.machine_records import OutOfMemory

EVALUATION = "evaluation"  # here a report suggests no micro-batch, because only training steps are measured

_LEAST_GB = 1e-6


def lines(report: OutOfMemory, rank: int) -> list[str]:
    """Format a report: the place, the memory in use, the largest tensors, and the micro-batch that would have fitted.

    >>> print(*lines(OutOfMemory(step=4, device="cuda", error="CUDA out of memory.", stage="forward", module="layers.7",
    ...     requested_gb=2.0, weights_gb=8.0, micro_batch=16, fitting_micro_batch=12), rank=0), sep=chr(10))
    rank 0: out of memory on cuda in the forward after 4 steps, in layers.7: CUDA out of memory.
    failed request 2 GB
    held: weights 8 GB
    micro-batch 12 would have fitted, 16 didn't, by the memory of a measured step
    """
    stage = "" if report.stage is None else f" in the {report.stage}"
    module = f", in {report.module}" if report.module else ""
    after = plural(report.step, "step")
    sentences = [f"rank {rank}: out of memory on {report.device}{stage} after {after}{module}: {report.error}"]
    if report.requested_gb is not None:
        sentences.append(f"failed request {amount(report.requested_gb)}")
    held = [
        f"{name} {amount(gb)}"
        for name, gb in (
            ("weights", report.weights_gb),
            ("gradients", report.gradients_gb),
            ("optimizer", report.optimizer_gb),
            ("other tensors", report.other_gb),
            ("allocator in all", report.reserved_gb),
        )
        if gb is not None and gb >= _LEAST_GB
    ]
    sentences += ["held: " + ", ".join(held)] if held else []
    largest = [
        f"{part.path or '(the model itself)'} {part.kind} {amount(part.gb)}"
        for part in report.largest
        if part.gb >= _LEAST_GB
    ]
    sentences += ["largest: " + ", ".join(largest)] if largest else []
    return sentences if report.stage == EVALUATION else [*sentences, *_would_have_fitted(report)]


def _would_have_fitted(report: OutOfMemory) -> Iterator[str]:
    fitting, number = report.fitting_micro_batch, report.layers_to_checkpoint
    failed = "" if report.micro_batch is None else f", {report.micro_batch} didn't"
    if fitting is None and report.about_micro_batch == 0:
        yield "no micro-batch would have fitted, by the layers that had run and by weights, gradients and optimizer"
    elif fitting is None and report.about_micro_batch is not None:
        yield f"about micro-batch {report.about_micro_batch} would have fitted{failed}, by the layers that had run"
    elif fitting is None:
        yield "unknown micro-batch that would have fitted: no earlier step was measured"
    elif not fitting:
        yield "no micro-batch would have fitted, by the memory of a measured step"
    elif report.micro_batch is not None and fitting >= report.micro_batch:
        yield (
            f"micro-batches of {fitting} samples as large as those of the measured step would have fitted; these "
            "samples were larger, or other memory has grown"
        )
    else:
        yield f"micro-batch {fitting} would have fitted{failed}, by the memory of a measured step"
    if number:
        yield f"checkpointing {number} of {report.layers} layers would have been enough"


def amount(gb: float) -> str:
    """Format an amount in GB or MB.

    >>> amount(2.147483648), amount(0.01)
    ('2.15 GB', '10 MB')
    """
    return f"{gb:.3g} GB" if gb >= 1 else f"{gb * 1000:.3g} MB"
