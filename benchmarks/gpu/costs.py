"""Costs and gains per step, each variant in turns with the one that it is compared with."""

import operator
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch.utils.data import DataLoader, Dataset

from gpu.bench import After, Bench, Row, attempted, train
from gpu.comparison import Variant, turns
from gpu.models import Case, large, small, stack
from perf_callbacks import PerfConfig

LONG_HOST, LONG_DEVICE = "the host takes long", "the device takes long, 5 ms"
BLOCK = 256
"""Steps of a turn: what the journal takes at once."""


def _variant(bench: Bench, case: Case, config: PerfConfig | None) -> Variant:
    def trained(steps: int, after: After) -> None:
        train(bench, case, [case.batch] * steps, config, after)

    return Variant(trained, settle=32) if config is None else Variant(trained)


def overhead(bench: Bench) -> Iterator[Row]:
    """Measuring, where the host takes long and where the device does; "nothing again" is the control."""
    kinds = ((LONG_HOST, small, bench.pick(40, 1)), (LONG_DEVICE, large, bench.pick(9, 1)))
    for name, make, cycles in bench.allowance.each(kinds, operator.itemgetter(0)):
        yield from attempted(bench, name, partial(_overhead, bench, name, make, cycles))


def _overhead(bench: Bench, name: str, make: Callable[[Bench], Case], cycles: int) -> Iterator[Row]:
    case = make(bench)
    configs = {"nothing": None, "nothing again": None, "ours": bench.config()}
    configs['ours, checklist="off"'] = bench.config(checklist="off")
    variants = {said: _variant(bench, case, config) for said, config in configs.items()}
    yield from turns(bench, name, variants, cycles, bench.pick(BLOCK, 8))


def collections(bench: Bench) -> Iterator[Row]:
    """The item `gc`, in a process that holds many objects and makes some in each step."""
    held = [[number] for number in range(bench.pick(400_000, 20_000))]
    kinds = ((LONG_HOST, small, bench.pick(8, 1)), (LONG_DEVICE, large, bench.pick(3, 1)))
    for name, make, cycles in bench.allowance.each(kinds, operator.itemgetter(0)):
        titled = f"{name}, {len(held):,} objects"
        yield from attempted(bench, name, partial(_collections, bench, titled, make, cycles))


def _collections(bench: Bench, name: str, make: Callable[[Bench], Case], cycles: int) -> Iterator[Row]:
    case = make(bench)
    made: list[object] = []
    plain = case.step

    def step(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        made[:] = [*made[-50:], [[number] for number in range(2000)]]
        return plain(batch)

    case.step = step  # type: ignore[method-assign]
    configs = {said: bench.config(gc=said, flops="off") for said in ("observe", "sync")}
    variants = {f'gc="{said}"': _variant(bench, case, config) for said, config in configs.items()}
    yield from turns(bench, name, variants, cycles, bench.pick(400, 8))


class Batches(Dataset[dict[str, torch.Tensor]]):
    """Batches that the workers make; 4 MB each in full."""

    def __init__(self, like: torch.Tensor, count: int) -> None:
        self._shape, self._dtype, self._count = like.shape, like.dtype, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.full(self._shape, index / self._count, dtype=self._dtype)}


def loaders(bench: Bench) -> Iterator[Row]:
    """The item `loaders`, in a loop that copies without waiting if it can."""
    case = stack(bench, *bench.pick((8, 4096, 512), (2, 64, 32)))
    plain = case.step
    case.step = lambda batch: plain(  # type: ignore[method-assign]
        {name: one.to(bench.device, non_blocking=True) for name, one in batch.items()}
    )

    def loop(loaders: str, steps: int, after: After) -> None:
        batches = Batches(case.batch["x"], steps)
        loader = DataLoader(batches, num_workers=2, collate_fn=operator.itemgetter(0))
        train(bench, case, loader, bench.config(loaders=loaders, flops="off"), after)

    variants = {f'loaders="{said}"': Variant(partial(loop, said)) for said in ("off", "apply")}
    yield from turns(bench, case.name, variants, bench.pick(8, 1), bench.pick(100, 4))
