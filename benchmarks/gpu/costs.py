"""Costs and gains per step, each variant in turns with the one that it is compared with."""

import operator
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch.utils.data import DataLoader, Dataset

from gpu.bench import After, Bench, Row, train, turns
from gpu.models import Case, large, small, stack
from perf_callbacks import PerfConfig

COLUMNS = ("case", "step", "variant", "added to the mean step", "95 % interval")


def _variant(bench: Bench, case: Case, config: PerfConfig | None) -> Callable[[int, After], object]:
    return lambda steps, after: train(bench, case, [case.batch] * steps, config, after)


def overhead(bench: Bench) -> Iterator[Row]:
    """Measuring, where the host takes long and where the device does."""
    for name, case, cycles in (
        ("the host takes long", small(bench), bench.pick(40, 1)),
        ("the device takes long", large(bench), bench.pick(8, 1)),
    ):
        configs = {"nothing": None, "nothing again": None, "ours": bench.config()}
        configs['ours, checklist="off"'] = bench.config(checklist="off")
        variants = {said: _variant(bench, case, config) for said, config in configs.items()}
        for row in turns(bench, variants, cycles, bench.pick(128, 8)):
            yield name, *row


def collections(bench: Bench) -> Iterator[Row]:
    """The item `gc`, in a process that holds many objects and makes some in each step."""
    held = [[number] for number in range(bench.pick(400_000, 20_000))]
    for name, case in (("the host takes long", small(bench)), ("the device takes long", large(bench))):
        case.made = []  # type: ignore[attr-defined]
        plain = case.step

        def step(
            batch: dict[str, torch.Tensor], case: Case = case, plain: Callable[..., torch.Tensor] = plain
        ) -> torch.Tensor:
            case.made = [*case.made[-50:], [[number] for number in range(2000)]]  # type: ignore[attr-defined]
            return plain(batch)

        case.step = step  # type: ignore[method-assign]
        configs = {said: bench.config(gc=said, flops="off") for said in ("observe", "sync")}
        variants = {f'gc="{said}"': _variant(bench, case, config) for said, config in configs.items()}
        for row in turns(bench, variants, bench.pick(5, 1), bench.pick(400, 8)):
            yield f"{name}, {len(held):,} objects", *row


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

    variants = {f'loaders="{said}"': partial(loop, said) for said in ("off", "apply")}
    for row in turns(bench, variants, bench.pick(8, 1), bench.pick(100, 4)):
        yield case.name, *row
