"""What measuring adds to a step, where the host takes long and where the device does, in turns."""

import contextlib
import itertools
import statistics
import time
from collections.abc import Iterator, Mapping
from functools import partial

from turns import NONE, SETTLE, Switch, Turns, interval

from gpu.bench import Bench, Row, quiet
from gpu.models import Case, large, small
from perf_callbacks import PerfConfig
from perf_callbacks.loop import measure

COLUMNS = ("case", "step", "variant", "added to the mean step", "95 % interval")


class Through(Turns):
    """The device is through with all before a block is timed, and with the block when its time is taken."""

    def __init__(self, variants: Mapping[str, tuple[Switch, Switch]], cycles: int, block: int, bench: Bench) -> None:
        super().__init__(variants, cycles)
        self.block, self._bench, self._step, self._start = block, bench, 0, 0.0

    @property
    def steps(self) -> int:
        return ((self.cycles + 1) * len(self.cycle) + 1) * (SETTLE + self.block)

    def step(self) -> None:
        self._step += 1
        if self._step == SETTLE:
            self._bench.synchronize()
            self._start = time.perf_counter()
        elif self._step == SETTLE + self.block:
            self._bench.synchronize()
            mean = (time.perf_counter() - self._start) / self.block
            self.blocks.append((self._now, (mean, mean)))
            self.switch()
            self._step = 0


def rows(bench: Bench) -> Iterator[Row]:
    yield from _compared(bench, "the host takes long", small(bench), bench.pick(40, 1), bench.pick(128, 8))
    yield from _compared(bench, "the device takes long", large(bench), bench.pick(8, 1), bench.pick(128, 8))


def _compared(bench: Bench, name: str, case: Case, cycles: int, block: int) -> Iterator[Row]:
    turns = _turns(bench, case, cycles, block)
    step = statistics.median([mean for variant, (mean, _) in turns.blocks if variant == turns.base])
    for other in turns.others:
        added = turns.differences(other, 0)
        low, high = (end * 1e6 for end in interval(added))
        middle = statistics.median(added)
        more = f"{middle * 1e6:.1f} us ({middle / step:+.3%})"
        yield name, f"{step * 1e6:.0f} us", other, more, f"[{low:.1f}, {high:.1f}] us"


def _turns(bench: Bench, case: Case, cycles: int, block: int) -> Through:
    measured, plain = contextlib.ExitStack(), itertools.repeat(case.batch)
    current = [iter(plain)]

    def ours(config: PerfConfig) -> None:
        perf = measure(model=case.model, optimizer=case.optimizer, loader=plain, config=config)
        current[0] = iter(measured.enter_context(perf).loader)

    def not_ours() -> None:
        measured.close()
        current[0] = iter(plain)

    variants = {
        "nothing": NONE,
        "nothing again": NONE,
        "ours": (partial(ours, bench.config()), not_ours),
        'ours, checklist="off"': (partial(ours, bench.config(checklist="off")), not_ours),
    }
    turns = Through(variants, cycles, block, bench)
    with quiet():
        for _ in range(turns.steps):
            case.step(next(current[0]))
            turns.step()
        not_ours()
    return turns
