"""Windows: sums over the same optimizer steps of all ranks. Each rank contributes a `Part`."""

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from perf_callbacks.kernel.records.fit_records import Window

NOTICE = 3
"""Windows from the proposal of a value until all ranks use it. Meanwhile, it reaches all ranks."""

MOST_NAMED = 64
"""Most missing ranks that a window lists; it counts them all. In a larger job, windows list no rank's resources."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Work of one rank in one window."""

    window: int
    """From 0 on. It covers optimizer steps `window * length + 1` to `(window + 1) * length`."""
    length: int
    rank: int
    world_size: int
    data_parallel: int
    """Groups of ranks that process the same samples: the job has processed `data_parallel / world_size` of all
    ranks' sum."""
    steps: int
    """Counted steps: included, or excluded as "recounted"."""
    seconds: float
    samples: int | None
    tokens: int | None
    useful_tokens: int | None
    """Tokens that the attention mask keeps: perhaps a tensor on a device until the part is sent."""
    model_flops: int | None = None
    """Of this rank alone, even if several ranks process the same samples. None: unknown for at least one step."""
    hardware_flops: int | None = None
    asks: Mapping[str, int] = field(default_factory=dict)
    signals: Mapping[str, "array[float]"] = field(default_factory=dict)
    """By name, arrays of type "f": seconds of each step of the window, from `first_step` on. NaN means unknown."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """Use of CPU, GPU and memory, under the names in `RESOURCES`. Unknown values are left out."""
    role: Mapping[str, int] = field(default_factory=dict)
    """Coordinates in the layout of the job, such as `{"data": 3, "tensor": 0}`. Empty if unknown."""
    attempt: int = 0
    """Restarts of the rank's process by an elastic launcher such as torchrun. Different nodes may count differently."""

    @property
    def first_step(self) -> int:
        return self.window * self.length + 1


@dataclass(frozen=True, kw_only=True, slots=True)
class GatheredWindow:
    """The signals that rank 0 has received for one window before the window's deadline."""

    first_step: int
    steps: int
    """Each signal has this length."""
    signals: Mapping[int, Mapping[str, "array[float]"]]
    """By rank. Empty if fewer than two ranks have sent their part: they can't be compared."""
    roles: Mapping[int, Mapping[str, int]]
    """Coordinates in the layout of the job, by rank. Ranks with unknown coordinates are left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSettings:
    """Settings of one fit that rank 0 chooses for all ranks."""

    fit: str
    """Different for each fit, even of one run."""
    run_id: str
    window: int | None
    directory: str | None = None
    """None: each rank knows its own output directory."""
    signals: bool = False
    """True if the parts of windows carry signals, which rank 0 reads."""


WindowReader = Callable[[GatheredWindow], None]
"""Reads the windows of all ranks on rank 0, in order, in a side thread: it should sleep briefly after every 2 ms of
work."""


def with_holds(window: Window, before: Window | None, now: int | None = None) -> Window:
    """Return the window with the step at which all ranks begin to use each proposed value, `NOTICE` windows later.

    A value of the previous window keeps its step. If any rank is missing, all of the previous window stays in force.
    """
    if window.missing:
        return window if before is None else replace(window, asks=before.asks, holds=before.holds)
    later = max(window.last_step, now or 0) + NOTICE * (window.last_step - window.first_step + 1)
    adopted = {} if before is None else {name: (before.asks[name], step) for name, step in before.holds.items()}
    holds = {}
    for name, amount in window.asks.items():
        value, step = adopted.get(name, (None, later))
        holds[name] = step if value == amount else later
    return replace(window, holds=holds)


def rates(window: Window) -> dict[str, float]:
    """Return the job's samples, tokens and useful tokens per second. Unknown rates are left out.

    >>> rates(Window(first_step=1, last_step=9, steps=8, ranks=2, seconds=4, samples=64, tokens=None, useful_tokens=0))
    {'samples_per_second': 16.0, 'useful_tokens_per_second': 0.0}
    """
    amounts = {"samples": window.samples, "tokens": window.tokens, "useful_tokens": window.useful_tokens}
    positive = {name: amount for name, amount in amounts.items() if amount is not None and window.seconds > 0}
    return {f"{name}_per_second": amount / window.seconds for name, amount in positive.items()}


def possible(item: Any) -> bool:
    """Check the numbers (not the types) in another rank's message: none negative, no window of 0 steps."""
    amounts = [getattr(item, field.name) for field in fields(item)]
    asked = [amount for asks in amounts if isinstance(asks, Mapping) for amount in asks.values()]
    if any([amount < 0 for amount in [*amounts, *asked] if isinstance(amount, int | float)]):
        return False
    return not isinstance(item, JobSettings) or item.window != 0
