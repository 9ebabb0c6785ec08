"""Batches from workers: whether pinned ones and copies that go on by themselves make steps shorter."""

import itertools
import operator
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, Dataset
from turns import SETTLE, interval

from gpu.bench import NEEDS_CUDA, Bench, Row, one_line, quiet, records, train
from gpu.models import Case, small, stack
from perf_callbacks import PerfConfig
from perf_callbacks.core.records import Checklist
from perf_callbacks.core.trial import PAIRS, TURN

COLUMNS = ("loop", "batch", "step with loaders=off", "less with loaders=apply", "95 % interval")
COPIED = ("loop", "loaders", "copies to the device of 16 batches, by kind")
PROVED = ("loop", "item", "status", "before", "after", "why")

PROFILED = 16
TRIAL = 2 * PAIRS * TURN + 150
"""Steps until a verdict is there, and in the journal."""

After = Callable[[int], object]
Loop = Callable[[Bench, Case, Any, PerfConfig, After], object]


class Batches(Dataset[dict[str, torch.Tensor]]):
    """Made in the workers; 4 MB each in full."""

    def __init__(self, like: torch.Tensor, count: int) -> None:
        self._shape, self._dtype, self._count = like.shape, like.dtype, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.full(self._shape, index / self._count, dtype=self._dtype)}


def plain(bench: Bench, case: Case, loader: Any, config: PerfConfig, after: After) -> None:
    """A loop that copies by itself, without waiting if it can be."""

    class Copying(Case):
        def __init__(self) -> None:
            self.__dict__ |= case.__dict__

        def step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            return case.step({name: one.to(bench.device, non_blocking=True) for name, one in batch.items()})

    train(bench, Copying(), loader, config, lambda number, _: after(number))


def accelerated(bench: Bench, case: Case, loader: Any, config: PerfConfig, after: After) -> None:
    """A loop in which accelerate copies."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, PartialState

    from perf_callbacks.accelerate import attach

    accelerator = Accelerator(cpu=not bench.cuda)
    with quiet():
        perf = attach(accelerator, config)
        try:
            model, optimizer, batches = accelerator.prepare(case.model, case.optimizer, loader)
            for number, batch in enumerate(batches, 1):
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()
                after(number)
            bench.synchronize()
        finally:
            perf.close()
            AcceleratorState._reset_state()  # noqa: SLF001 there is one for each process otherwise
            PartialState._reset_state()  # noqa: SLF001


LOOPS: dict[str, Loop] = {"plain": plain, "Accelerate": accelerated}


def _case(bench: Bench) -> Case:
    return stack(bench, *bench.pick((8, 4096, 512), (2, 64, 32)))


def _loader(case: Case, count: int) -> Any:
    batches = Batches(case.batch["x"], count)
    return DataLoader(batches, num_workers=2, collate_fn=operator.itemgetter(0))


def rows(bench: Bench) -> Iterator[Row]:
    """Steps in turns."""
    for name, loop in LOOPS.items():
        case, cycles, block = _case(bench), bench.pick(8, 1), bench.pick(100, 4)
        megabytes = f"{case.batch['x'].nbytes / 1e6:.2f} MB"
        try:
            turns = [*itertools.islice(itertools.cycle(("off", "apply")), 2 * cycles + 1)]
            means = [_mean(bench, loop, case, loaders, block) for loaders in turns]
        except Exception as error:  # noqa: BLE001 the other loop goes on
            yield name, megabytes, one_line(error), "", ""
            continue
        less = [((a + c) / 2 - b) * 1e3 for a, b, c in zip(means[::2], means[1::2], means[2::2], strict=False)]
        low, high = interval(less)
        off = statistics.median(means[::2]) * 1e3
        yield name, megabytes, f"{off:.3f} ms", f"{statistics.median(less):.3f} ms", f"[{low:.3f}, {high:.3f}] ms"


def _mean(bench: Bench, loop: Loop, case: Case, loaders: str, block: int) -> float:
    times = []

    def after(number: int) -> None:
        if number in {SETTLE, SETTLE + block}:
            bench.synchronize()
            times.append(time.perf_counter())

    loop(bench, case, _loader(case, SETTLE + block), bench.config(loaders=loaders, flops="off"), after)
    return (times[1] - times[0]) / block


def copies(bench: Bench) -> Iterator[Row]:
    """What they were copied from, as the profiler names it, and whether the host waited."""
    for (name, loop), loaders in itertools.product(LOOPS.items(), ("off", "apply")):
        try:
            yield name, loaders, _copied(bench, loop, loaders)
        except Exception as error:  # noqa: BLE001 the other loop goes on
            yield name, loaders, one_line(error)


def _copied(bench: Bench, loop: Loop, loaders: str) -> str:
    profiler = profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if bench.cuda else [])])

    def after(number: int) -> None:
        if number == SETTLE:
            bench.synchronize()
            profiler.start()
        elif number == SETTLE + PROFILED:
            bench.synchronize()
            profiler.stop()

    case = _case(bench)
    loop(bench, case, _loader(case, SETTLE + PROFILED), bench.config(loaders=loaders, flops="off"), after)
    kinds: Counter[str] = Counter()
    for event in profiler.key_averages():
        if "HtoD" in event.key or event.key == "cudaStreamSynchronize":
            kinds[event.key] += event.count
    said = ", ".join(f"{kind}: {count}" for kind, count in sorted(kinds.items())) or "none"
    return said if bench.cuda else NEEDS_CUDA


def proved(bench: Bench) -> Iterator[Row]:
    """What `checklist="prove"` finds, in the journal's words."""
    model = _case(bench) if bench.cuda else small(bench)
    trials = (("Accelerate", "gc", bench.pick(TRIAL, 8)), ("plain", "loaders", TRIAL))
    for name, skip, steps in trials:
        config = bench.config(checklist="prove", skip=skip, flops="off")
        try:
            LOOPS[name](bench, model, _loader(model, steps), config, lambda _number: None)
        except Exception as error:  # noqa: BLE001 the other loop goes on
            yield name, "all", one_line(error), "", "", ""
            continue
        for item in records(config, Checklist):
            yield name, item.item, item.status, *(str(one or "—") for one in (item.before, item.after, item.why))
