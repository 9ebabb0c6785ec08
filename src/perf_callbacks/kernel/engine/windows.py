"""Windows: the same optimizer steps of all ranks, combined.

A window is `length` optimizer steps by the trainer's count. Each rank contributes a `Part`.
"""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from perf_callbacks.kernel.records.fit_records import Window

NOTICE = 3
"""Number of windows between a rank's proposal and the step from which the proposal holds. All ranks receive the
proposal in this time."""

MOST_NAMED = 64
"""Most missing ranks that a window lists; all are counted. In a job of more ranks, a window has no figures by rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Work of one rank in one window."""

    window: int
    """Number of the window, from 0 on: optimizer steps `window * length + 1` to `(window + 1) * length`."""
    length: int
    rank: int
    world_size: int
    data_parallel: int
    """Number of groups of ranks that share their samples. Under tensor or pipeline parallelism several ranks process
    the same samples, so the job processed `data_parallel / world_size` of the ranks' sum."""
    steps: int
    """Number of steps of the window that the next fields cover: the steps of rows, and steps that are in no row only
    because of a FLOP count after the first count."""
    seconds: float
    samples: int | None
    """Samples. None, here and in the next two fields: unknown."""
    tokens: int | None
    useful_tokens: int | None
    """An integer when the part is sent. Before, it may be a number that a device still computes."""
    model_flops: int | None = None
    """FLOPs of this rank alone, even if several ranks process the same samples. None: the FLOPs of a step are
    unknown."""
    hardware_flops: int | None = None
    asks: Mapping[str, int] = field(default_factory=dict)
    """Values that this rank proposes to all ranks, by name."""
    signals: Mapping[str, "array[float]"] = field(default_factory=dict)
    """For each signal, by name, the seconds of each step of the window, from `first_step` on: an array of type "f".
    NaN: unknown."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """Use of the machine by this rank, by the names in `resources.py`. Unknown resources are left out."""
    role: Mapping[str, int] = field(default_factory=dict)
    """Coordinates of the rank in the layout of the job, such as `{"data": 3, "tensor": 0}`. Empty: unknown."""
    attempt: int = 0
    """Number of restarts of the rank's process by an elastic launcher. Nodes may count them differently."""

    @property
    def first_step(self) -> int:
        """First step of the window, by the trainer's count."""
        return self.window * self.length + 1


@dataclass(frozen=True, kw_only=True, slots=True)
class GatheredWindow:
    """Signals of one window that rank 0 received before the deadline."""

    first_step: int
    steps: int
    """Number of steps of the window: the length of each signal."""
    signals: Mapping[int, Mapping[str, "array[float]"]]
    """Signals of each rank, by rank. Empty if fewer than two ranks are known: nothing can be compared."""
    roles: Mapping[int, Mapping[str, int]]
    """Coordinates of the ranks, where they are known."""
    missing: tuple[int, ...]
    """Ranks whose part is missing, in order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSettings:
    """Settings of one fit that hold for all ranks, chosen by rank 0."""

    fit: str
    """Identifies the fit. Two fits of one run differ too."""
    run_id: str
    window: int | None
    """Optimizer steps per window; None: nothing is exchanged."""
    directory: str | None = None
    """Output directory of all ranks; None: each rank knows its own."""
    signals: bool = False
    """True: parts carry signals, and rank 0 reads them."""


class WindowReader(ABC):
    """Base class of a feature that reads the windows of all ranks on rank 0."""

    @abstractmethod
    def window_gathered(self, window: GatheredWindow) -> None:
        """Read a window. The side thread calls this once per window, in order, at the deadline of the window or before.

        A reader should sleep for a moment every 2 ms, because the training thread may want the GIL.
        """


def hold(window: Window, before: Window | None, now: int | None = None) -> Window:
    """Return the window with the step from which each proposed value holds.

    A new value holds `NOTICE` windows later. If the previous window had the same value, the step stays the same. If
    ranks are missing, the values of the previous window stay in force. `now` is the step that training has reached.
    """
    if window.missing:
        return window if before is None else replace(window, asks=before.asks, holds=before.holds)
    later = max(window.last_step, now or 0) + NOTICE * (window.last_step - window.first_step + 1)
    said = {} if before is None else {name: (before.asks[name], step) for name, step in before.holds.items()}
    holds = {}
    for name, amount in window.asks.items():
        known, step = said.get(name, (None, later))
        holds[name] = step if known == amount else later
    return replace(window, holds=holds)


def rates(window: Window) -> dict[str, float]:
    """Compute the amounts of the job per second; unknown amounts are left out.

    >>> rates(Window(first_step=1, last_step=9, steps=8, ranks=2, seconds=4, samples=64, tokens=None, useful_tokens=0))
    {'samples_per_second': 16.0, 'useful_tokens_per_second': 0.0}
    """
    amounts = {"samples": window.samples, "tokens": window.tokens, "useful_tokens": window.useful_tokens}
    known = {name: amount for name, amount in amounts.items() if amount is not None and window.seconds > 0}
    return {f"{name}_per_second": amount / window.seconds for name, amount in known.items()}


def possible(item: Any) -> bool:
    """Return True if the numbers of a message between ranks are plausible. Types are checked before."""
    amounts = [getattr(item, one.name) for one in fields(item)]
    asked = [amount for asks in amounts if isinstance(asks, Mapping) for amount in asks.values()]
    if any([amount < 0 for amount in [*amounts, *asked] if isinstance(amount, int | float)]):
        return False
    return not isinstance(item, JobSettings) or item.window != 0
