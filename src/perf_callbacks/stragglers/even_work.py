"""Local times, corrected for batches that are larger than usual.

If texts have uneven lengths, the rank with the most tokens takes longest, although the rank is not slow.
"""

from collections.abc import Callable, Sequence
from itertools import chain

from perf_callbacks.stragglers.peers import DEVICE, HOST, LOCAL, SAMPLE, WORK, Peers, Signals, known, median

SLICE = 128
"""Number of ranks per slice of the work."""


def without_batch_size(signals: Sequence[Signals], rest: Callable[[], object]) -> Sequence[Signals]:
    """Subtract from local times the seconds that larger batches explain, for ranks that do the same work.

    A rank without sizes stays as it is. Usual size and pace are medians over all ranks, so a slow rank stays slow.
    """
    sized = [one for one in signals if WORK in one]
    sample = sized[:: max(1, len(sized) // SAMPLE)]
    sizes = [*chain.from_iterable([known(one[WORK]) for one in sample])]
    if not sizes or min(sizes) == max(sizes):
        return signals
    usual = median(sizes)
    pace = median([pace for one in sample for pace in _paces(one)])
    return [_one(signal, usual, pace, rest if place % SLICE == 0 else None) for place, signal in enumerate(signals)]


def _paces(signals: Signals) -> list[float]:
    """Return the seconds per unit of work of each step, counting only the causes that grow with work."""
    peers = Peers((0,), (signals,))
    grown = [sum(seconds) for seconds in zip(peers.column(0, HOST), peers.column(0, DEVICE), strict=True)]
    return known([seconds / size for seconds, size in zip(grown, signals[WORK], strict=True) if size])


def _one(signals: Signals, usual: float, pace: float, rest: Callable[[], object] | None) -> Signals:
    if rest is not None:
        rest()
    if WORK not in signals:
        return signals
    local = [
        seconds - pace * (size - usual) if size > usual else seconds
        for seconds, size in zip(signals[LOCAL], signals[WORK], strict=True)
    ]
    return {**signals, LOCAL: local}
