"""The device under test, and a clock that owes nothing to the package."""

import contextlib
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from gpu.allowance import Allowance
from perf_callbacks import PerfConfig
from perf_callbacks.kernel.records.codec import attempts
from perf_callbacks.kernel.records.journal_file import read
from perf_callbacks.loop import Measurement, measure

DENSE_BF16 = 989.5e12
"""FLOP/s in bfloat16 that the data sheets of H100 SXM and H200 promise."""

PEAKS = {torch.bfloat16: DENSE_BF16, torch.float32: 67e12}
"""FLOP/s that these data sheets promise, by the format of the weights. TF32 is off."""

NEEDS_CUDA = "needs CUDA"

Row = tuple[str, ...]
After = Callable[[int], object]
T = TypeVar("T")


class MissingError(Exception):
    """A case lacks a package or a capability. The message says which."""


@dataclass(frozen=True)
class Bench:
    """A device, the size of the work, and a directory for journals."""

    device: torch.device
    quick: bool
    directory: Path
    allowance: Allowance = field(default_factory=Allowance)

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def simulated(self) -> bool:
        return self.device.type == "sim"

    @property
    def module(self) -> Any:
        """Module of torch for this kind of device, if the device has events. None: the host's clock is right."""
        return None if self.device.type == "cpu" else torch.get_device_module(self.device)

    def pick(self, whole: T, quick: T) -> T:
        return quick if self.quick else whole

    def synchronize(self) -> None:
        if self.module is not None:
            self.module.synchronize(self.device)

    def stamp(self) -> Any:
        """A point in time on the current stream of the device under test; without a GPU, on the host's clock."""
        module = self.module
        if module is None:
            return time.perf_counter()
        event = module.Event(enable_timing=True)
        event.record(module.current_stream(self.device))
        return event

    def seconds(self, start: Any, end: Any) -> float:
        """Seconds between two stamps, once the device has passed both."""
        return end - start if self.module is None else start.elapsed_time(end) / 1000

    def config(self, **settings: Any) -> PerfConfig:
        """Settings with a journal of their own. Without CUDA a peak is given, since nothing here is about it."""
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


def records(config: PerfConfig, kind: type[T]) -> list[T]:
    """The records of one kind in a journal."""
    journal = attempts(read(Path(config.output_dir or ".") / "perf_callbacks" / "rank0.jsonl"))
    return [entry.record for entry in journal[-1] if isinstance(entry.record, kind)]


def attempted(bench: Bench, name: str, rows: Callable[[], Iterable[Row]]) -> Iterator[Row]:
    """The rows of a case. If it fails, the last row says why, and the next case can run."""
    try:
        yield from rows()
    except MissingError as missing:
        yield name, f"left out: {missing}"
    except ImportError as error:
        yield name, f"left out: {one_line(error)}"
    except Exception as error:  # noqa: BLE001 the other cases go on
        traceback.print_exc()
        bench.allowance.failed.append(name)
        yield name, f"failed: {one_line(error)}"


def one_line(error: BaseException) -> str:
    """An error as a cell of a table."""
    said = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {said[0]}".replace("|", "/")[:300]
