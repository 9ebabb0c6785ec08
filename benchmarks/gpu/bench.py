"""Where it is measured, and the ways to do so that owe nothing to what is measured."""

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from perf_callbacks import PerfConfig
from perf_callbacks.core.codec import attempts
from perf_callbacks.host.journal_file import read
from perf_callbacks.loop import Measurement, measure

DENSE_BF16 = 989.5e12
"""FLOP/s that the data sheets of H100 SXM and H200 promise, by which everything here is compared."""

NEEDS_CUDA = "needs CUDA"

Row = tuple[str, ...]
T = TypeVar("T")


@dataclass(frozen=True)
class Bench:
    """A device, how much is done on it, and a directory for journals."""

    device: torch.device
    quick: bool
    directory: Path

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    def pick(self, whole: T, quick: T) -> T:
        """What is done in full, or in the small form."""
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
        """Between two stamps, once the device has passed both."""
        return start.elapsed_time(end) / 1000 if self.cuda else end - start

    def config(self, **settings: Any) -> PerfConfig:
        """Each with a journal of its own. A CPU's peak is not measured: it is not what is asked here."""
        peak = {} if self.cuda else {"peak_tflops": f"{DENSE_BF16 / 1e12}"}
        return PerfConfig(**{"output_dir": tempfile.mkdtemp(dir=self.directory), **peak, **settings})

    def cost(self, action: Callable[[], object]) -> float:
        """Seconds from a device that has nothing to do to one that has nothing to do any more."""
        self.synchronize()
        start = time.perf_counter()
        action()
        self.synchronize()
        return time.perf_counter() - start


def train(
    bench: Bench,
    case: Any,
    loader: Iterable[Any],
    config: PerfConfig,
    after: Callable[[int, Measurement[Any]], object] = lambda _number, _perf: None,
) -> Measurement[Any]:
    """A loop that is measured. The device is through with it before measuring ends, or last steps have no time."""
    with quiet(), measure(model=case.model, optimizer=case.optimizer, loader=loader, config=config) as perf:
        for number, batch in enumerate(perf.loader, 1):
            case.step(batch)
            after(number, perf)
        bench.synchronize()
    return perf


def records(config: PerfConfig, kind: type[T]) -> list[T]:
    """What a journal has of one kind."""
    journal = attempts(read(Path(config.output_dir or ".") / "perf_callbacks" / "rank0.jsonl"))
    return [entry.record for entry in journal[-1] if isinstance(entry.record, kind)]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Opening cards and closing tables are not what is looked at."""
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def percent(ours: float | None, truth: float) -> str:
    """By how much ours differs."""
    return "—" if ours is None else f"{(ours / truth - 1) * 100:+.3f} %"


def one_line(error: BaseException) -> str:
    """Why something did not work, as a cell of a table."""
    said = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {said[0]}".replace("|", "/")[:300]
