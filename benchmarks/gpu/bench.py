"""The device under test, and clocks and comparisons that owe nothing to the package."""

import contextlib
import operator
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from turns import SETTLE, interval

from perf_callbacks import PerfConfig
from perf_callbacks.kernel.records.codec import attempts
from perf_callbacks.kernel.records.journal_file import read
from perf_callbacks.loop import Measurement, measure

DENSE_BF16 = 989.5e12
"""FLOP/s that the data sheets of H100 SXM and H200 promise: the peak of every table here."""

NEEDS_CUDA = "needs CUDA"

Row = tuple[str, ...]
After = Callable[[int], object]
T = TypeVar("T")


@dataclass(frozen=True)
class Bench:
    """A device, the size of the work, and a directory for journals."""

    device: torch.device
    quick: bool
    directory: Path

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    def pick(self, whole: T, quick: T) -> T:
        return quick if self.quick else whole

    def synchronize(self) -> None:
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def stamp(self) -> Any:
        """A point in time on the device's own clock; without a GPU, on the host's."""
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: Any, end: Any) -> float:
        """Seconds between two stamps, once the device has passed both."""
        return start.elapsed_time(end) / 1000 if self.cuda else end - start

    def config(self, **settings: Any) -> PerfConfig:
        """Settings with a journal of their own. A CPU's peak is given, since nothing here is about it."""
        peak = {} if self.cuda else {"peak_tflops": f"{DENSE_BF16 / 1e12}"}
        return PerfConfig(**{"output_dir": tempfile.mkdtemp(dir=self.directory), **peak, **settings})


def train(
    bench: Bench, case: Any, loader: Iterable[Any], config: PerfConfig | None, after: After = lambda _number: None
) -> Measurement[Any]:
    """A loop, measured unless there is no `config`. The device is through before it ends: the last steps have times."""
    perf = measure(model=case.model, optimizer=case.optimizer, loader=loader, config=config or bench.config())
    measured: Any = contextlib.nullcontext() if config is None else perf
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere), measured:
        for number, batch in enumerate(loader if config is None else perf.loader, 1):
            case.step(batch)
            after(number)
        bench.synchronize()
    return perf


def turns(
    bench: Bench, variants: Mapping[str, Callable[[int, After], object]], cycles: int, block: int
) -> Iterator[Row]:
    """Compare variants with the first one, which runs before and after each. A variant trains so many steps."""
    base, *others = variants
    names = [*[name for other in others for name in (base, other)] * (cycles + 1), base]
    means = [_mean(bench, variants[name], block) for name in names]
    warm = 2 * len(others)
    around = [*zip(names, means, means[1:], means[2:], names[1:], strict=False)][warm:]
    usual = statistics.median([mean for name, mean in zip(names, means, strict=True) if name == base])
    for other in others:
        added = [mean - (before + after) / 2 for _, before, mean, after, name in around if name == other]
        low, high = (end * 1e6 for end in interval(added))
        middle = statistics.median(added)
        more = f"{middle * 1e6:+.1f} us ({middle / usual:+.3%})"
        yield f"{usual * 1e6:.0f} us ({base})", other, more, f"[{low:.1f}, {high:.1f}] us"


def _mean(bench: Bench, variant: Callable[[int, After], object], block: int) -> float:
    """Seconds of a mean step, from a device that has nothing to do to one that has nothing to do any more."""
    times = []

    def after(number: int) -> None:
        if number in {SETTLE, SETTLE + block}:
            bench.synchronize()
            times.append(time.perf_counter())

    variant(SETTLE + block, after)
    return operator.sub(*reversed(times)) / block


def records(config: PerfConfig, kind: type[T]) -> list[T]:
    """The records of one kind in a journal."""
    journal = attempts(read(Path(config.output_dir or ".") / "perf_callbacks" / "rank0.jsonl"))
    return [entry.record for entry in journal[-1] if isinstance(entry.record, kind)]


def one_line(error: BaseException) -> str:
    """An error as a cell of a table."""
    said = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {said[0]}".replace("|", "/")[:300]
