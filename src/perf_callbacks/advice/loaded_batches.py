"""Batches of a loader: their size, their sequence lengths, and bursts of waits for them."""

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from perf_callbacks.kernel.batches.tensors import ShapeKey
from perf_callbacks.kernel.engine.observer import Observer
from perf_callbacks.kernel.records.fit_records import Record, Steps

STARVED = 0.15
"""Workers are too slow if waits for data take at least this share of the steps' time.

On a busy machine, receiving a batch takes 9 to 15 ms, even from a fast loader.
"""

FEWEST_GROUPS = 8

ROWS = 2
"""Dimensions of a tensor with one for samples and one for tokens."""


class LoadedBatches(Observer):
    """Finds the size of the largest batch, the number of distinct sequence lengths, and the waits of groups of steps.

    A group has as many steps as there are workers, since workers that start together finish together: with a slow
    loader, one step in each group waits, and most steps don't.
    """

    def __init__(self, workers: int) -> None:
        self._workers = max(1, workers)
        self._bytes: int | None = None
        self._lengths: set[int] = set()
        self._rest: list[tuple[float, float]] = []  # seconds and wait of steps that don't fill a group
        self._calm = self._bursts = 0
        self._burst_seconds = 0.0

    @override
    def shape_seen(self, shape: ShapeKey, tensors: Mapping[str, Any]) -> None:
        self._lengths |= {tensor.shape[1] for tensor in tensors.values() if len(getattr(tensor, "shape", ())) == ROWS}
        nbytes = [getattr(tensor, "nbytes", None) for tensor in tensors.values()]
        sizes = [size for size in nbytes if isinstance(size, int)]
        if len(sizes) == len(nbytes):
            self._bytes = max(self._bytes or 0, sum(sizes))

    @override
    def record_written(self, record: Record) -> None:
        if not isinstance(record, Steps) or not record.data_time:
            return
        reasons = record.excluded or (None,) * len(record.step)
        columns = zip(record.step_time, record.data_time, reasons, strict=True)
        self._rest += [(step, wait or 0.0) for step, wait, reason in columns if step and reason is None]
        while len(self._rest) >= self._workers:
            group, self._rest = self._rest[: self._workers], self._rest[self._workers :]
            wait = sum([wait for _, wait in group])
            if wait < STARVED * sum([step for step, _ in group]):
                self._calm += 1
            else:
                self._bursts += 1
                self._burst_seconds += wait

    @override
    def facts(self) -> Mapping[str, Any]:
        groups = self._calm + self._bursts
        size_facts = {"batch_bytes": self._bytes, "batch_lengths": len(self._lengths)}
        if groups < FEWEST_GROUPS or not self._bursts:
            return size_facts
        return {**size_facts, "calm_share": self._calm / groups, "burst_seconds": self._burst_seconds / self._bursts}
