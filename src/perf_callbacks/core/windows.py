"""Windows: the same optimizer steps of all ranks, combined.

A window is `length` optimizer steps by the trainer's count. Ranks hand each other `Part`s.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from perf_callbacks.core.records import Window
from perf_callbacks.core.steps import plus

NOTICE = 3
"""Windows between a request of a rank and the step from which it holds. By then, as a rule, all ranks know of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Work of one rank in one window."""

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


def combine(parts: Collection[Part]) -> Window | None:
    """Combine one part of each rank, in any order, into one window.

    There is none if a rank is missing or if ranks disagree on their counting. They also disagree if they included
    different numbers of steps, because their amounts then belong to no common time. Amounts are exact: an amount is
    unknown if one rank doesn't know it, or if it isn't whole, because ranks that share samples counted them
    differently.
    """
    common = {(part.window, part.length, part.world_size, part.data_parallel, part.steps) for part in parts}
    if len(common) != 1:
        return None
    ((window, length, world_size, data_parallel, steps),) = common
    if steps == 0 or sorted([part.rank for part in parts]) != list(range(world_size)):
        return None

    def total(amounts: list[int | None]) -> int | None:
        known = [amount for amount in amounts if amount is not None]
        whole, rest = divmod(sum(known) * data_parallel, world_size)
        return None if rest or len(known) < len(amounts) else whole

    return Window(
        first_step=window * length + 1,
        last_step=(window + 1) * length,
        steps=steps,
        ranks=world_size,
        seconds=max([part.seconds for part in parts]),
        samples=total([part.samples for part in parts]),
        tokens=total([part.tokens for part in parts]),
        useful_tokens=total([part.useful_tokens for part in parts]),
        model_flops=plus(*[part.model_flops for part in parts]),
        hardware_flops=plus(*[part.hardware_flops for part in parts]),
        asks=_least([part.asks for part in parts]),
    )


def hold(window: Window, before: Window | None) -> Window:
    """Return the window with the step from which its requests hold: some windows later, or as in the window before."""
    later = window.last_step + NOTICE * (window.last_step - window.first_step + 1)
    said = {} if before is None else {name: (before.asks[name], step) for name, step in before.holds.items()}
    holds = {}
    for name, amount in window.asks.items():
        known, step = said.get(name, (None, later))
        holds[name] = step if known == amount else later
    return replace(window, holds=holds)


def _least(asks: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Return the least value that any rank asks for, by name."""
    common = set[str].intersection(*[{*asked} for asked in asks])
    return {name: min([asked[name] for asked in asks]) for name in sorted(common)}


def rates(window: Window) -> dict[str, float]:
    """Compute the amounts of the job per second; unknown amounts are left out.

    >>> rates(Window(first_step=1, last_step=9, steps=8, ranks=2, seconds=4, samples=64, tokens=None, useful_tokens=0))
    {'samples_per_second': 16.0, 'useful_tokens_per_second': 0.0}
    """
    amounts = {"samples": window.samples, "tokens": window.tokens, "useful_tokens": window.useful_tokens}
    known = {name: amount for name, amount in amounts.items() if amount is not None and window.seconds > 0}
    return {f"{name}_per_second": amount / window.seconds for name, amount in known.items()}


def possible(item: Any) -> bool:
    """Tell if the numbers of a `Part`, `Window`, `Verdict` or `Note` can be true. Their types are right already."""
    amounts = [getattr(item, one.name) for one in fields(item)]
    asked = [amount for asks in amounts if isinstance(asks, Mapping) for amount in asks.values()]
    if any([amount < 0 for amount in [*amounts, *asked] if isinstance(amount, int | float)]):
        return False
    if isinstance(item, Part):
        return item.rank < item.world_size and 0 < item.data_parallel <= item.world_size and item.steps <= item.length
    return not isinstance(item, Verdict) or item.window != 0
