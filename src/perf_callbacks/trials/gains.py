"""Arithmetic of trials: the speedup of each setting with its interval, and the comparison of losses."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

QUANTILES = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip
"""Student's t for a 95 % interval, for 1 to 20 degrees of freedom."""

SAME, CLOSE, OTHER = "the same", "close", "different"

CLOSE_PART = 1e-3
"""Largest relative difference of close losses. Kernels round differently."""


class Gain(NamedTuple):
    """Speedup of a setting as a factor, with its 95 % interval."""

    factor: float
    low: float | None
    """`low` and `high` are None after a single round, which gives no interval."""
    high: float | None

    @property
    def sure(self) -> bool:
        return self.low is not None and self.low > 1


def gains(times: Mapping[str, Sequence[float]], base: str) -> dict[str, Gain]:
    """Return the speedups over `base`, from the seconds of a step in each round. All settings have the same rounds.

    The interval comes from differences between runs of the same setting. A difference that affects all settings of a
    round doesn't count. All settings are assumed to be equally noisy.

    >>> gains({"as it is": [2.0, 2.2], "fused": [1.0, 1.1]}, "as it is")["fused"].factor
    2.0
    """
    logs = {name: [math.log(value) for value in seconds] for name, seconds in times.items()}
    rounds = len(logs[base])
    if not rounds:
        return {}
    means = {name: math.fsum(row) / rounds for name, row in logs.items()}
    mean = math.fsum(means.values()) / len(means)
    by_round = [math.fsum([row[place] for row in logs.values()]) / len(logs) - mean for place in range(rounds)]
    squares = math.fsum(
        [(value - means[name] - by_round[place]) ** 2 for name, row in logs.items() for place, value in enumerate(row)]
    )
    freedom = (len(logs) - 1) * (rounds - 1)
    width = quantile(freedom) * math.sqrt(2 * squares / freedom / rounds) if freedom else None
    gains_by_name = {}
    for name, log_mean in means.items():
        if name != base:
            factor = means[base] - log_mean
            ends = (None, None) if width is None else (math.exp(factor - width), math.exp(factor + width))
            gains_by_name[name] = Gain(math.exp(factor), *ends)
    return gains_by_name


def quantile(freedom: int) -> float:
    """Student's t for a 95 % interval.

    >>> quantile(2), round(quantile(40), 2)
    (4.303, 2.02)
    """
    return QUANTILES[freedom - 1] if freedom <= len(QUANTILES) else 1.96 + 2.5 / freedom


def compared(first: Sequence[float], second: Sequence[float]) -> str | None:
    """Compare the losses of two runs; None: there are none.

    >>> compared([1.0, 0.5], [1.0, 0.5001])
    'close'
    """
    pairs = [*zip(first, second, strict=False)]
    if not pairs:
        return None
    if all(loss == other_loss or (math.isnan(loss) and math.isnan(other_loss)) for loss, other_loss in pairs):
        return SAME
    near = all(abs(loss - other_loss) <= CLOSE_PART * max(abs(loss), abs(other_loss)) for loss, other_loss in pairs)
    return CLOSE if near else OTHER
