"""Windows: the same optimizer steps of all ranks, combined.

A window is `length` optimizer steps by the trainer's count. Ranks hand each other `Part`s.
"""

from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from perf_callbacks.core.records import Window
from perf_callbacks.core.steps import plus

NOTICE = 3
"""Windows between a request of a rank and the step from which it holds. By then, as a rule, all ranks know of it."""

MOST_NAMED = 64
"""Most missing ranks that a window names; all are counted."""


@dataclass(kw_only=True, slots=True)  # a frozen one takes four times as long to build, and rank 0 builds thousands
class Part:
    """Work of one rank in one window. Nothing changes it."""

    window: int
    """Number of the window, from 0 on: optimizer steps `window * length + 1` to `(window + 1) * length`."""
    length: int
    rank: int
    world_size: int
    data_parallel: int
    """Number of groups of ranks with their own samples. Under tensor or pipeline parallelism several ranks process the
    same samples, so the job processed `data_parallel / world_size` of the ranks' sum."""
    steps: int
    """Number of these steps that are in rows or were counted again. The next fields cover these steps."""
    seconds: float
    samples: int | None
    """Samples; None: unknown, like the next two fields."""
    tokens: int | None
    useful_tokens: int | None
    """An integer; until the part is sent, it may be a number that is still under way on a device."""
    model_flops: int | None = None
    """FLOPs of this rank itself, even if several ranks process the same samples. None: unknown for a step."""
    hardware_flops: int | None = None
    asks: Mapping[str, int] = field(default_factory=dict)
    """Values that this rank asks all ranks for, by name."""
    signals: Mapping[str, "array[float]"] = field(default_factory=dict)
    """Seconds of each step of the window, from `first_step` on, by the name of the signal: arrays of type "f". NaN:
    unknown."""
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
    """Parts of one window that had come by its deadline."""

    first_step: int
    steps: int
    """Number of steps of the window: the length of each signal."""
    parts: Mapping[int, Part]
    """Part of each rank, by rank."""
    missing: tuple[int, ...]
    """Ranks whose part didn't come, in order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Settings of one fit that hold for all ranks, as rank 0 says."""

    fit: str
    """Identifies the fit, also within one run."""
    run_id: str
    window: int | None
    """Optimizer steps per window; None: nothing is exchanged."""
    directory: str | None = None
    """Output directory of all ranks; None: each rank knows its own."""
    stragglers: bool = False
    """True: parts carry signals, and rank 0 analyses them."""


class Combination:
    """Parts of one window, combined some at a time: with thousands of ranks it takes milliseconds.

    Amounts are exact: an amount is unknown if one rank is missing or doesn't know it, or if it isn't whole, because
    ranks that share samples counted them differently.
    """

    def __init__(self) -> None:
        self._common: set[tuple[int, int, int, int, int]] = set()
        self._ranks: list[int] = []
        self._seconds = 0.0
        self._sums: list[int | None] = [0] * 5
        self._asks: Mapping[str, int] | None = None

    def add(self, parts: Collection[Part]) -> None:
        """Add some parts."""
        self._common |= {(part.window, part.length, part.world_size, part.data_parallel, part.steps) for part in parts}
        self._ranks += [part.rank for part in parts]
        self._seconds = max([self._seconds, *[part.seconds for part in parts]])
        columns = zip(
            *[(part.samples, part.tokens, part.useful_tokens, part.model_flops, part.hardware_flops) for part in parts],
            strict=True,
        )
        self._sums = [plus(known, *column) for known, column in zip(self._sums, columns, strict=False)]
        for part in parts:
            if part.asks != self._asks:
                self._asks = part.asks if self._asks is None else _least(self._asks, part.asks)

    def window(self, missing: Sequence[int] = ()) -> Window | None:
        """Return the window without some ranks, whose parts didn't come.

        There is none if ranks disagree on their counting. They also disagree if they included different numbers of
        steps, because their amounts then belong to no common time.
        """
        if len(self._common) != 1:
            return None
        ((window, length, world_size, data_parallel, steps),) = self._common
        if steps == 0 or sorted([*self._ranks, *missing]) != list(range(world_size)):
            return None
        samples, tokens, useful_tokens, model_flops, hardware_flops = [None] * 5 if missing else self._sums

        def total(amount: int | None) -> int | None:
            whole, rest = (0, 1) if amount is None else divmod(amount * data_parallel, world_size)
            return None if rest else whole

        return Window(
            first_step=window * length + 1,
            last_step=(window + 1) * length,
            steps=steps,
            ranks=world_size,
            missing=len(missing),
            missing_ranks=tuple(missing[:MOST_NAMED]),
            seconds=self._seconds,
            samples=total(samples),
            tokens=total(tokens),
            useful_tokens=total(useful_tokens),
            model_flops=model_flops,
            hardware_flops=hardware_flops,
            asks={} if missing or self._asks is None else dict(self._asks),
        )


def combine(parts: Collection[Part], missing: Sequence[int] = ()) -> Window | None:
    """Combine one part of each rank that isn't missing, in any order, into one window, if there is one."""
    combination = Combination()
    if parts:
        combination.add(parts)
    return combination.window(missing)


def hold(window: Window, before: Window | None, now: int | None = None) -> Window:
    """Return the window with the step from which its requests hold: some windows later, or as in the window before.

    While ranks are missing, the requests of the window before hold. `now` is the step that training has reached, if
    it has gone on since the end of the window.
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


def _least(asks: Mapping[str, int], others: Mapping[str, int]) -> dict[str, int]:
    """Return the lesser of two values, by the names that both have."""
    return {name: min(asks[name], others[name]) for name in sorted({*asks} & {*others})}


def rates(window: Window) -> dict[str, float]:
    """Compute the amounts of the job per second; unknown amounts are left out.

    >>> rates(Window(first_step=1, last_step=9, steps=8, ranks=2, seconds=4, samples=64, tokens=None, useful_tokens=0))
    {'samples_per_second': 16.0, 'useful_tokens_per_second': 0.0}
    """
    amounts = {"samples": window.samples, "tokens": window.tokens, "useful_tokens": window.useful_tokens}
    known = {name: amount for name, amount in amounts.items() if amount is not None and window.seconds > 0}
    return {f"{name}_per_second": amount / window.seconds for name, amount in known.items()}


def possible(item: Any) -> bool:
    """Tell if the numbers of a `Window`, `Verdict` or `Note` can be true. Their types are right already."""
    amounts = [getattr(item, one.name) for one in fields(item)]
    asked = [amount for asks in amounts if isinstance(asks, Mapping) for amount in asks.values()]
    if any([amount < 0 for amount in [*amounts, *asked] if isinstance(amount, int | float)]):
        return False
    return not isinstance(item, Verdict) or item.window != 0
