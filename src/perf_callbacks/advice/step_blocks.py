"""Blocks of steps, which show how much stages vary, and whether steps become longer.

Neighbouring steps are alike, so they say little about the whole fit.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from typing_extensions import override

from perf_callbacks.advice.facts import Drift
from perf_callbacks.kernel.engine.account import BEGINNING
from perf_callbacks.kernel.engine.observer import Observer
from perf_callbacks.kernel.records.fit_records import Record, Steps
from perf_callbacks.kernel.records.shares import LARGE

STAGES = ("data", "forward", "backward", "optimizer", "communication", "gc", "other")

FEWEST, MOST = 8, 64
"""Least blocks for a confidence interval. At `MOST` blocks, each pair of neighbours becomes one."""

CHUNK = 2

DEVIATIONS = 2.1
"""Half the width of a 95 % confidence interval, in standard errors, for some 20 blocks."""

QUARTER = 4

Sums = tuple[float, ...]
"""Seconds, tokens, samples and FLOPs of a block, then the seconds of each of `STAGES`."""

AMOUNTS = slice(1, 4)
FIRST_STAGE = 4
"""Index in `Sums`. `AMOUNTS` is the slice with tokens, samples and FLOPs."""

GROWN = 0.02
"""Longer steps are no drift if the batches grew by more than this part."""


class StepBlocks(Observer):
    """Adds up the measured steps in blocks of equal length, and keeps the first step apart."""

    def __init__(self) -> None:
        self._blocks: tuple[list[Sums], int] = [], CHUNK
        """With the steps of each block: one tuple, so that another thread never reads new blocks with an old number."""
        self._first: Sums = ()
        self._rest: list[Sums] = []  # steps that don't fill a block

    @override
    def record_written(self, record: Record) -> None:
        if isinstance(record, Steps):
            number = len(record.step)
            amounts = record.tokens, record.samples, record.model_flops
            columns = [record.step_time, *amounts, *[getattr(record, f"{stage}_time") for stage in STAGES]]
            full = [[value or 0.0 for value in column] if column else [0.0] * number for column in columns]
            rows = [*zip(record.excluded or [None] * number, zip(*full, strict=True), strict=True)]
            self._first = next((row for reason, row in rows if reason in BEGINNING), self._first)
            self._rest += [row for reason, row in rows if reason is None and row[0]]
            self._fill()

    @override
    def facts(self) -> Mapping[str, Any]:
        blocks, length = self._blocks
        results: dict[str, Any] = {}
        if self._first:
            results["first_seconds"] = dict(zip(STAGES, self._first[FIRST_STAGE:], strict=True))
        if len(blocks) >= FEWEST:
            results |= {"widths": dict(zip(STAGES, widths(blocks), strict=True)), "drift": drift(blocks, length)}
        return results

    def _fill(self) -> None:
        blocks, length = self._blocks
        blocks = [*blocks]
        while len(self._rest) >= length:
            rows, self._rest = self._rest[:length], self._rest[length:]
            blocks.append(_sums(rows))
            if len(blocks) == MOST:
                blocks, length = [_sums(pair) for pair in zip(blocks[::2], blocks[1::2], strict=True)], 2 * length
        self._blocks = blocks, length


def widths(blocks: Sequence[Sums]) -> list[float]:
    """Half the width of the 95 % interval of each stage's share of the step time, relative to the share.

    >>> [round(width, 2) for width in widths([(10.0, 0, 0, 0, 1.0), (10.0, 0, 0, 0, 3.0)] * 8)]
    [0.27]
    """
    number, whole = len(blocks), math.fsum([block[0] for block in blocks])
    errors = []
    for place in range(FIRST_STAGE, len(blocks[0])):
        seconds = math.fsum([block[place] for block in blocks])
        share = seconds / whole
        squares = math.fsum([(block[place] - share * block[0]) ** 2 for block in blocks])
        error = math.sqrt(squares * number / (number - 1))
        errors.append(DEVIATIONS * error / seconds if seconds else 0.0)
    return errors


def drift(blocks: Sequence[Sums], length: int) -> Drift | None:
    """Growth from the first to the last quarter of the blocks.

    Drift means that steps grow from quarter to quarter although batches don't. Each block of the last quarter must be
    longer than all blocks of the first quarter.
    """
    quarter = len(blocks) // 4
    first, last = blocks[:quarter], blocks[-quarter:]
    if quarter < QUARTER or max([block[0] for block in first]) >= min([block[0] for block in last]):
        return None
    quarters = [_sums(blocks[place * quarter : (place + 1) * quarter]) for place in range(3)] + [_sums(last)]
    before, after = quarters[0], quarters[-1]
    part = LARGE * before[0] / 4
    if after[0] < (1 + LARGE) * before[0] or any(later[0] < earlier[0] + part for earlier, later in pairwise(quarters)):
        return None
    if any(late > (1 + GROWN) * early for early, late in zip(before[AMOUNTS], after[AMOUNTS], strict=True)):
        return None
    grown = [late - early for early, late in zip(before[FIRST_STAGE:], after[FIRST_STAGE:], strict=True)]
    whole = math.fsum([block[0] for block in blocks])
    return Drift(
        before[0] / quarter / length,
        after[0] / quarter / length,
        max(0.0, 1 - before[0] / quarter * len(blocks) / whole),
        STAGES[grown.index(max(grown))],
    )


def _sums(rows: Sequence[Sums]) -> Sums:
    return tuple(map(math.fsum, zip(*rows, strict=True)))
