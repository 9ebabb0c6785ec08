"""Bundles: the data of several ranks for one window. A machine's first rank makes one, so rank 0 gets one note each."""

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from perf_callbacks.kernel.engine.resources import by_rank, job_figures, packed
from perf_callbacks.kernel.engine.steps import plus
from perf_callbacks.kernel.engine.windows import MOST_NAMED, Part
from perf_callbacks.kernel.records.fit_records import Window

Number = TypeVar("Number", int, float)

MOST = 2**96
"""An amount at or above this counts as unknown."""


@dataclass(kw_only=True, slots=True)  # a frozen class takes four times as long to build, and rank 0 builds hundreds
class Bundle:
    """Work of several ranks in one window. They agree in their step counts and in the names of their signals."""

    window: int
    """The fields up to `attempt` mean the same as in `Part`."""
    length: int
    world_size: int
    data_parallel: int
    steps: int
    attempt: int
    seconds: float
    """Of the bundle's slowest rank."""
    amounts: tuple[int | None, ...]
    """Sums of samples, tokens, useful tokens, model FLOPs, hardware FLOPs. None: unknown for a rank."""
    asks: Mapping[str, int]
    ranks: "array[int]"
    axes: tuple[str, ...]
    """Names of the coordinates of each rank, such as "data". Empty: unknown."""
    places: "array[int]"
    """Coordinates rank by rank, in the order of `axes`."""
    names: tuple[str, ...]
    columns: "array[float]"
    """Signals rank by rank, in the order of `names`. Each has `length` values."""
    resources: "array[float]"
    """Use of the machine rank by rank, in the order of `RESOURCES`, with `UNKNOWN`."""

    @classmethod
    def from_part(cls, part: Part) -> "Bundle":
        """The part's useful tokens must already be read from the device."""
        amounts = part.samples, part.tokens, part.useful_tokens, part.model_flops, part.hardware_flops
        return cls(
            window=part.window,
            length=part.length,
            world_size=part.world_size,
            data_parallel=part.data_parallel,
            steps=part.steps,
            attempt=part.attempt,
            seconds=part.seconds,
            amounts=tuple([amount if amount is not None and 0 <= amount < MOST else None for amount in amounts]),
            asks=part.asks,
            ranks=array("I", [part.rank]),
            axes=tuple(part.role),
            places=array("q", part.role.values()),
            names=tuple(part.signals),
            columns=_joined("f", part.signals.values()),
            resources=packed(part.resources),
        )

    @property
    def first_step(self) -> int:
        return self.window * self.length + 1

    def signals(self) -> dict[int, "RankSignals"]:
        places = {name: place * self.length for place, name in enumerate(self.names)}
        size = len(self.names) * self.length
        return {
            rank: RankSignals(self.columns, self.length, places, number * size)
            for number, rank in enumerate(self.ranks)
        }

    def roles(self) -> dict[int, dict[str, int]]:
        """Return the coordinates of each rank, by name; none if unknown."""
        number = len(self.axes)
        starts = range(0, len(self.places), number) if number else ()
        places = [self.places[start : start + number] for start in starts]
        return {rank: dict(zip(self.axes, place, strict=True)) for rank, place in zip(self.ranks, places, strict=False)}


class RankSignals(Mapping[str, "array[float]"]):
    """Signals of one rank, copied from the bundle only when read, because most never are."""

    __slots__ = ("_columns", "_length", "_places", "_start")

    def __init__(self, columns: "array[float]", length: int, places: Mapping[str, int], start: int) -> None:
        self._columns, self._length, self._places, self._start = columns, length, places, start

    def __getitem__(self, name: str) -> "array[float]":
        at = self._start + self._places[name]
        return self._columns[at : at + self._length]

    def __contains__(self, name: object) -> bool:
        """The signal itself is not read."""
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def bundled(bundles: Iterable[Bundle]) -> list[Bundle]:
    """Merge bundles, sorted by rank, that have the same window, counts and names."""
    alike: dict[object, list[Bundle]] = {}
    for bundle in bundles:
        alike.setdefault((*_counting(bundle), bundle.attempt, bundle.axes, bundle.names), []).append(bundle)
    return [some[0] if len(some) == 1 else _together(some) for some in alike.values()]


def _together(bundles: Sequence[Bundle]) -> Bundle:
    asks = bundles[0].asks
    for bundle in bundles[1:]:
        asks = _least(asks, bundle.asks)
    return replace(
        bundles[0],
        seconds=max([bundle.seconds for bundle in bundles]),
        amounts=tuple([plus(*amounts) for amounts in zip(*[bundle.amounts for bundle in bundles], strict=True)]),
        asks=asks,
        ranks=_joined("I", [bundle.ranks for bundle in bundles]),
        places=_joined("q", [bundle.places for bundle in bundles]),
        columns=_joined("f", [bundle.columns for bundle in bundles]),
        resources=_joined("f", [bundle.resources for bundle in bundles]),
    )


class Combination:
    """Sums the data of all ranks for one window. To keep each call short, `add` takes only some ranks at a time.

    Sums are exact; unknown if a rank's is, and after a remainder: ranks of the same samples then counted differently.
    """

    def __init__(self) -> None:
        self._counting: set[tuple[int, ...]] = set()
        self._ranks: list[int] = []
        self._seconds = 0.0
        self._sums: list[int | None] = [0] * 5
        self._asks: Mapping[str, int] | None = None
        self._resources = array("f")

    def add(self, bundles: Collection[Bundle]) -> None:
        for bundle in bundles:
            self._counting.add(_counting(bundle))
            self._ranks.extend(bundle.ranks)
            self._resources.extend(bundle.resources)
            self._seconds = max(self._seconds, bundle.seconds)
            self._asks = bundle.asks if self._asks is None else _least(self._asks, bundle.asks)
        amounts = zip(*[bundle.amounts for bundle in bundles], strict=True)
        self._sums = [plus(total, *column) for total, column in zip(self._sums, amounts, strict=False)]

    def window(self, missing: Sequence[int] = ()) -> Window | None:
        """None: the data don't fit together, such as different numbers of included steps."""
        if len(self._counting) != 1:
            return None
        ((window, length, world_size, data_parallel, steps),) = self._counting
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
            job=job_figures(self._resources, complete=not missing),
            by_rank=by_rank(self._resources, self._ranks, world_size) if world_size <= MOST_NAMED else {},
        )


def _counting(bundle: Bundle) -> tuple[int, int, int, int, int]:
    """Return the numbers that must agree on all ranks of a window."""
    return bundle.window, bundle.length, bundle.world_size, bundle.data_parallel, bundle.steps


def _least(asks: Mapping[str, int], others: Mapping[str, int]) -> Mapping[str, int]:
    """Return the smaller value of each name that is in both."""
    if asks == others:
        return asks
    return {name: min(asks[name], others[name]) for name in sorted({*asks} & {*others})}


def _joined(kind: str, arrays: "Iterable[array[Number]]") -> "array[Number]":
    joined: array[Number] = array(kind)
    for column in arrays:
        joined.extend(column)
    return joined
