"""Batches that were fetched and wait for a call of the model: a loop may drop some, or fetch several before it trains.

A batch belongs to the step whose call of the model gets one of its tensors, or its shape after a copy to a device.
"""

import weakref
from collections.abc import Sequence
from typing import Any

from perf_callbacks.kernel.batches.reader import Batch, nothing
from perf_callbacks.kernel.batches.tensors import leaves

MOST_WAITING = 64
"""If more batches wait, the oldest counts as dropped."""

Tensors = tuple["weakref.ref[Any]", ...]

UNKNOWN = Batch(None, None, None, ())

Waiting = tuple[Batch, Tensors]
"""A batch and its tensors; none if no other batch was waiting when it was added."""


def identify(batch: Any) -> Tensors:
    """Return weak references to the tensors of a batch whose classes support them."""
    tensors = [entry.tensor for entry in leaves(batch) or ()]
    return tuple([weakref.ref(tensor) for tensor in tensors if type(tensor).__weakrefoffset__])


def same(some: Tensors, others: Tensors) -> bool:
    if not some or len(some) != len(others):
        return False
    return all([tensor() is not None and tensor() is other() for tensor, other in zip(some, others, strict=True)])


def versions(tensors: Tensors) -> tuple[int, ...]:
    """Return the number of writes to each tensor. A loader may write the next batch into the same tensor."""
    return tuple([_written(reference()) for reference in tensors])


def _written(tensor: Any) -> int:
    untold = tensor is None or (hasattr(tensor, "is_inference") and tensor.is_inference())
    return 0 if untold else getattr(tensor, "_version", 0)


def take(
    waiting: list[Waiting], arguments: Any, *, again: bool = False, alone: bool = True
) -> tuple[list[Batch], bool]:
    """Remove and return the waiting batches that a model call uses, and True if the newest is one of them.

    If several batches have the shape of the call, the result is one batch with the amounts that they share. If no shape
    fits, but the call has as many rows as all waiting batches together, it uses all of them. `again`: the model was
    called before in this forward, maybe with the same batch, so only tensors identify a batch. Not `alone`: the call
    may also use a batch of another loader, so only a batch without stored tensors is recognized by its shape.
    """
    entries = [entry for entry in leaves(arguments) or () if entry.rows is not None]
    ids, sizes = {id(entry.tensor) for entry in entries}, {entry.sizes for entry in entries}
    for place, (_, tensors) in enumerate(waiting):
        if not ids.isdisjoint([id(reference()) for reference in tensors]):
            return [waiting.pop(place)[0]], place == len(waiting)
    if again:
        return [], False
    places = range(len(waiting))  # another thread may append
    fits = [len(sizes.intersection([size for _, size in waiting[place][0].shape])) for place in places]
    if not alone:
        fits = [0 if waiting[place][1] else fits[place] for place in places]
    likely = [place for place, fit in enumerate(fits) if fit and fit == max(fits)]
    rows = entries[0].rows if entries else None
    if not likely and alone:
        likely = [place for place in places if rows is not None and waiting[place][0].samples == rows]
    if likely:
        newest = likely[0] == len(waiting) - 1
        shared = common([waiting[place][0] for place in likely])
        del waiting[likely[0]]
        return [shared], newest
    if not alone:
        return [], False
    batches = [batch for batch, _ in waiting]
    del waiting[: len(batches)]
    samples = [batch.samples for batch in batches]
    if rows is not None and None not in samples and rows == sum(filter(None, samples)):
        return batches, True
    return [UNKNOWN], True


def common(batches: Sequence[Batch]) -> Batch:
    """Return what all batches have in common. Useful tokens are unknown unless all batches are the same object.

    >>> common([Batch(4, 32, 20, (("", (4, 8)),)), Batch(4, 32, 31, (("", (4, 8)),))])
    Batch(samples=4, tokens=32, useful_tokens=None, shape=(('', (4, 8)),))
    """
    first, *others = batches
    if all([batch is first for batch in others]):
        return first
    return Batch(
        first.samples if all([batch.samples == first.samples for batch in others]) else None,
        first.tokens if all([batch.tokens == first.tokens for batch in others]) else None,
        None,
        first.shape if all([batch.shape == first.shape for batch in others]) else (),
    )


def untrained(batch: Batch) -> Batch:
    """Return the batch with 0 samples and 0 tokens. Its FLOPs still count.

    >>> untrained(Batch(4, 32, None, (("", (4, 8)),)))
    Batch(samples=0, tokens=0, useful_tokens=None, shape=(('', (4, 8)),))
    """
    return Batch(*nothing(batch), batch.shape)
