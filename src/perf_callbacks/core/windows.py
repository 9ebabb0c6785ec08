"""What all ranks did in the same optimizer steps, put together from what each of them did.

A window is `length` optimizer steps by the trainer's count. Ranks hand each other `Part`s.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from perf_callbacks.core.records import Window
from perf_callbacks.core.steps import plus

NOTICE = 3
"""Windows from what ranks ask each other for until it holds: by then all of them have heard of it, as a rule."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """What one rank did in one window."""

    window: int
    """From 0 on: optimizer steps `window * length + 1` to `(window + 1) * length`."""
    length: int
    rank: int
    world_size: int
    data_parallel: int
    """In how many parts the ranks share the samples. Under tensor or pipeline parallelism several ranks go through the
    same ones: of their sum, `data_parallel / world_size` is what the job went through."""
    steps: int
    """Those of the window that are in rows, or were counted again: what follows is about these."""
    seconds: float
    samples: int | None
    """None: unknown, as the next two."""
    tokens: int | None
    useful_tokens: int | None
    """An integer; until the part is sent, it may be a number that is still under way on a device."""
    model_flops: int | None = None
    """What this rank itself did, also where several go through the same samples; None: unknown of some step."""
    hardware_flops: int | None = None
    asks: Mapping[str, int] = field(default_factory=dict)
    """What this rank asks all ranks for, by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What holds for one fit, on all ranks: rank 0 says it."""

    fit: str
    """Differs from fit to fit, also within one run."""
    run_id: str
    window: int | None
    """Optimizer steps per window; None: nothing is exchanged."""
    directory: str | None = None
    """The output directory of all ranks; None: each rank knows its own."""


def combine(parts: Collection[Part]) -> Window | None:
    """One window over all ranks, from one part of each, in whatever order.

    There is none where a rank is missing or ranks disagree on what they count: also where they included different
    numbers of steps, since what they went through then belongs to no common time. Amounts are exact: one that a rank
    doesn't know is unknown, and so is one that doesn't come out whole, because ranks that go through the same samples
    counted them differently.
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
    """A window that says from when on holds what is asked for: some windows later, or as the one before said."""
    later = window.last_step + NOTICE * (window.last_step - window.first_step + 1)
    said = {} if before is None else {name: (before.asks[name], step) for name, step in before.holds.items()}
    holds = {}
    for name, amount in window.asks.items():
        known, step = said.get(name, (None, later))
        holds[name] = step if known == amount else later
    return replace(window, holds=holds)


def _least(asks: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """What everybody asks for, by those who ask for least."""
    common = set[str].intersection(*[{*asked} for asked in asks])
    return {name: min([asked[name] for asked in asks]) for name in sorted(common)}


def rates(window: Window) -> dict[str, float]:
    """What went through the job per second; what is unknown is left out.

    >>> rates(Window(first_step=1, last_step=9, steps=8, ranks=2, seconds=4, samples=64, tokens=None, useful_tokens=0))
    {'samples_per_second': 16.0, 'useful_tokens_per_second': 0.0}
    """
    amounts = {"samples": window.samples, "tokens": window.tokens, "useful_tokens": window.useful_tokens}
    known = {name: amount for name, amount in amounts.items() if amount is not None and window.seconds > 0}
    return {f"{name}_per_second": amount / window.seconds for name, amount in known.items()}


def possible(item: Any) -> bool:
    """Tell if the numbers of a `Part`, `Window` or `Verdict` can be true. Their types are right already."""
    amounts = [getattr(item, one.name) for one in fields(item)]
    asked = [amount for asks in amounts if isinstance(asks, Mapping) for amount in asks.values()]
    if any([amount < 0 for amount in [*amounts, *asked] if isinstance(amount, int | float)]):
        return False
    if isinstance(item, Part):
        return item.rank < item.world_size and 0 < item.data_parallel <= item.world_size and item.steps <= item.length
    return not isinstance(item, Verdict) or item.window != 0
