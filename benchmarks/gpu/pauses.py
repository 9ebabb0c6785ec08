"""Garbage collections of the host: whether the device goes on meanwhile."""

import contextlib
import gc
import statistics
from collections.abc import Iterator

from gpu.bench import Bench, Row, records, train
from gpu.models import Case, large, small
from perf_callbacks.core.records import Gc

COLUMNS = ("case", "pauses", "mean pause", "longer for each", "exposed")

EVERY = 16
"""Steps between two collections."""


def rows(bench: Bench) -> Iterator[Row]:
    cases = (("the host takes long", small(bench)), ("the device takes long", large(bench)))
    with _by_hand():
        held = [[number] for number in range(bench.pick(400_000, 20_000))]
        for name, case in cases:
            yield name, *_paused(bench, case, bench.pick(5, 1))
        del held


def _paused(bench: Bench, case: Case, turns: int) -> Row:
    collections = bench.pick(6, 2)
    longer, pauses = [], []
    for _ in range(turns):
        without, _ = _timed(bench, case, collections, collect=False)
        seconds, paused = _timed(bench, case, collections, collect=True)
        longer.append((seconds - without) / collections)
        pauses += paused
    pause, exposed = statistics.mean(pauses), statistics.median(longer)
    return str(len(pauses)), f"{pause * 1e3:.2f} ms", f"{exposed * 1e3:.2f} ms", f"{exposed / pause:.1%}"


def _timed(bench: Bench, case: Case, collections: int, *, collect: bool) -> tuple[float, list[float]]:
    """How long all steps took on the device's clock, and the pauses in them."""
    stamps = []

    def after(number: int, _: object) -> None:
        if number in {EVERY, (collections + 1) * EVERY}:
            stamps.append(bench.stamp())
        elif number > EVERY and number % EVERY == EVERY // 2 and collect:
            gc.collect()

    config = bench.config(gc="observe", flops="off")
    train(bench, case, [case.batch] * ((collections + 1) * EVERY), config, after)
    return bench.seconds(*stamps), [one.seconds for one in records(config, Gc) if one.generation == 2]


@contextlib.contextmanager
def _by_hand() -> Iterator[None]:
    """None but those that are asked for, of objects that are made from here on."""
    gc.collect()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.enable()
