"""Windows: sums over the same optimizer steps of all ranks.

A window covers `length` consecutive optimizer steps. Each rank contributes a `Part`.
"""

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from perf_callbacks.kernel.records.fit_records import Window

NOTICE = 3
"""Number of windows from the proposal of a value until all ranks use the value. Meanwhile, the proposal reaches all
ranks."""

MOST_NAMED = 64
"""Maximum number of missing ranks that a window lists. The window's count of missing ranks has no limit. In a job with
more ranks than `MOST_NAMED`, windows don't list the resources of each rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Work of one rank in one window."""

    window: int
    """Number of the window, from 0 on. The window covers optimizer steps `window * length + 1` to `(window + 1) *
    length`."""
    length: int
    rank: int
    world_size: int
    data_parallel: int
    """Number of groups of ranks. All ranks of one group process the same samples, as under tensor or pipeline
    parallelism. The job has processed `data_parallel / world_size` times the sum of all ranks' samples."""
    steps: int
    """Number of counted steps in the window. A step counts if it is included, or if the reason for its exclusion is
    "recounted"."""
    seconds: float
    samples: int | None
    """Number of samples. None means that the number of samples is unknown."""
    tokens: int | None
    useful_tokens: int | None
    """Number of tokens that the attention mask keeps. Before the part is sent, the number may be a tensor on a
    device."""
    model_flops: int | None = None
    """FLOPs of this rank alone, even if several ranks process the same samples. None means that the FLOPs of at least
    one step are unknown."""
    hardware_flops: int | None = None
    asks: Mapping[str, int] = field(default_factory=dict)
    """Values that this rank proposes to all ranks, each under its name."""
    signals: Mapping[str, "array[float]"] = field(default_factory=dict)
    """Maps the name of each signal to an array of type "f". The array has the seconds of each step of the window, from
    `first_step` on. NaN means unknown."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """This rank's use of CPU, GPU and memory, under the names in `RESOURCES`. Unknown values are left out."""
    role: Mapping[str, int] = field(default_factory=dict)
    """Coordinates of the rank in the layout of the job, such as `{"data": 3, "tensor": 0}`. Empty if unknown."""
    attempt: int = 0
    """Number of times that an elastic launcher such as torchrun has restarted the rank's process. Different nodes may
    count differently."""

    @property
    def first_step(self) -> int:
        return self.window * self.length + 1


@dataclass(frozen=True, kw_only=True, slots=True)
class GatheredWindow:
    """The signals that rank 0 has received for one window before the window's deadline."""

    first_step: int
    steps: int
    """Number of steps of the window. Each signal has this length."""
    signals: Mapping[int, Mapping[str, "array[float]"]]
    """Maps each rank to its signals. Empty if fewer than two ranks have sent their part, because then ranks can't be
    compared."""
    roles: Mapping[int, Mapping[str, int]]
    """Maps each rank to its coordinates in the layout of the job. Ranks with unknown coordinates are left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSettings:
    """Settings of one fit that rank 0 chooses for all ranks."""

    fit: str
    """Id of the fit. Different fits have different ids, even if they belong to the same run."""
    run_id: str
    window: int | None
    """Number of optimizer steps per window. None means that ranks exchange no windows."""
    directory: str | None = None
    """Output directory that all ranks use. None means that each rank knows its own directory."""
    signals: bool = False
    """True if the parts of windows carry signals, which rank 0 reads."""


WindowReader = Callable[[GatheredWindow], None]
"""Method of a feature that reads the windows of all ranks on rank 0.

A side thread calls the method once per window, in the order of the windows. After every 2 ms of work, a reader should
sleep briefly, so that the training thread can get the GIL.
"""


def hold(window: Window, before: Window | None, now: int | None = None) -> Window:
    """Return a copy of the window, with the step at which all ranks begin to use each proposed value.

    All ranks wait `NOTICE` windows before they use a new value. If the previous window has the same value, the starting
    step of this value stays unchanged. If any rank is missing, all values and starting steps of the previous window
    stay in force. `now` is the step that training has reached.
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
    """Return the job's samples, tokens and useful tokens per second. Unknown rates are left out.

    >>> rates(Window(first_step=1, last_step=9, steps=8, ranks=2, seconds=4, samples=64, tokens=None, useful_tokens=0))
    {'samples_per_second': 16.0, 'useful_tokens_per_second': 0.0}
    """
    amounts = {"samples": window.samples, "tokens": window.tokens, "useful_tokens": window.useful_tokens}
    known = {name: amount for name, amount in amounts.items() if amount is not None and window.seconds > 0}
    return {f"{name}_per_second": amount / window.seconds for name, amount in known.items()}


def possible(item: Any) -> bool:
    """Return True if the numbers in a message from another rank are possible.

    No number may be negative, and no window may have 0 steps. The caller has checked the types.
    """
    amounts = [getattr(item, one.name) for one in fields(item)]
    asked = [amount for asks in amounts if isinstance(asks, Mapping) for amount in asks.values()]
    if any([amount < 0 for amount in [*amounts, *asked] if isinstance(amount, int | float)]):
        return False
    return not isinstance(item, JobSettings) or item.window != 0
