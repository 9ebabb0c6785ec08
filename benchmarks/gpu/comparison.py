"""Variants in turns, each compared with the first: what each adds to a step."""

import operator
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from turns import SETTLE, interval

from gpu.bench import After, Bench, Row

COLUMNS = (
    "case", "step", "variant", "added to the mean step", "95 % interval", "added to the minimum",
    "added to the 10th percentile", "turns",
)  # fmt: skip

WARM = 1
"""Rounds at the start that don't count."""


@dataclass(frozen=True)
class Variant:
    """A way to train some steps, with a call after each."""

    train: Callable[[int, After], object]
    settle: int = SETTLE
    """Steps at the start of a turn that don't count."""


def turns(bench: Bench, case: str, variants: Mapping[str, Variant], cycles: int, block: int) -> Iterator[Row]:
    """Compare variants with the first one, which runs before and after each. A turn times this many steps.

    The minimum and the 10th percentile are of the means of turns, so that work that is done every 256 steps or once
    a second belongs to them.
    """
    base, *others = variants
    names: list[str] = []
    means: list[float] = []

    def turn(name: str) -> None:
        names.append(name)
        means.append(_mean(bench, variants[name], block))

    for _ in bench.allowance.rounds(cycles + WARM, case, at_least=WARM + 1):
        for other in others:
            turn(base)
            turn(other)
    turn(base)
    first = WARM * 2 * len(others)
    names, means = names[first:], means[first:]
    around = [*zip(names[1:], means, means[1:], means[2:], strict=False)]
    alone = [mean for name, mean in zip(names, means, strict=True) if name == base]
    usual = statistics.median(alone)
    for other in others:
        with_it = [mean for name, mean in zip(names, means, strict=True) if name == other]
        added = [mean - (before + after) / 2 for name, before, mean, after in around if name == other]
        found = interval(added)
        quiet = [_tenth(with_it) - _tenth(alone), min(with_it) - min(alone)]
        more = [_more(seconds, usual) for seconds in (statistics.median(added), *reversed(quiet))]
        middle, least, tenth = more
        turned = f"{len(with_it)} of {block} steps"
        ends = f"[{found.low * 1e6:.1f}, {found.high * 1e6:.1f}] us"
        yield case, f"{usual * 1e6:.0f} us ({base})", other, middle, ends, least, tenth, turned


def _more(seconds: float, usual: float) -> str:
    return f"{seconds * 1e6:+.1f} us ({seconds / usual:+.3%})"


def _tenth(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 10]


def _mean(bench: Bench, variant: Variant, block: int) -> float:
    """Seconds of a mean step, from a device that has nothing to do to one that has nothing to do any more."""
    times: list[float] = []
    settle = bench.pick(variant.settle, 4)

    def after(number: int) -> None:
        if number in {settle, settle + block}:
            bench.synchronize()
            times.append(time.perf_counter())

    variant.train(settle + block, after)
    return operator.sub(*reversed(times)) / block
