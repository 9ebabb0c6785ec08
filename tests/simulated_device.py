"""A simulated accelerator: tensors on "sim:0" over tensors of the CPU, and a stream that a thread works through.

torch keeps one such device per process, for good, so only a process of its own may call `install`. Operations compute
at once, on the CPU. Only work from `busy` takes time: its milliseconds pass on the device's clock, which events read.
By default this clock is virtual: only the queued work moves it, so times are exact on a busy machine too. The thread
also sleeps, so that the host is ahead of the device.

`python -c "import simulated_device; simulated_device.install()"` is all that a program needs. Environment variables
hold the defaults of `install`, for example SIMULATED_EVENTS=hanging.
"""

import os
import queue
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import backend_registration
from torch.utils._pytree import tree_map

NAME = "sim"
"""The kind of device, as torch calls it."""

PLACE = f"{NAME}:0"

EVENTS = ("timed", "none", "raising", "failing", "hanging", "nan", "unordered")
"""Kinds of events. "none": the device's module has no `Event`. "raising": elapsed times raise. "failing": after 100
records, queries raise. "hanging": events never complete. "nan": all elapsed times. "unordered": every third event
reads 1 ms less, as if it were on another stream."""

MEMORY = ("none", "plain", "nested", "raising")
"""Statistics of the allocator: none, by `memory_stats`, by `memory_stats_as_nested_dict` too, or functions that
raise, as with an allocator that isn't torch's."""

CLOCKS = ("virtual", "host")
"""What events read: the sum of the work that is done, or the host's clock when the stream comes to the event."""


class Stream:
    """Work in order, done by a thread. Its clock counts milliseconds."""

    def __init__(self, clock: str) -> None:
        self._clock, self._done_ms = clock, 0.0
        self._work: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="simulated stream", daemon=True).start()

    def put(self, work: Callable[[], object]) -> None:
        self._work.put(work)

    def busy(self, milliseconds: float) -> None:
        self.put(lambda: self._pass(milliseconds))

    def now(self) -> float:
        return self._done_ms if self._clock == "virtual" else time.perf_counter() * 1000

    def wait(self) -> None:
        done = threading.Event()
        self.put(done.set)
        done.wait()

    def _pass(self, milliseconds: float) -> None:
        time.sleep(milliseconds / 1000)
        self._done_ms += milliseconds

    def _run(self) -> None:
        while True:
            self._work.get()()


class Event:
    """As `torch.cuda.Event`: recorded at the end of the queue, done once the stream comes there."""

    kind = "timed"
    records = 0

    def __init__(self, *_: Any, enable_timing: bool = False, **__: Any) -> None:
        self._timing, self._at, self._number, self._late = enable_timing, None, 0, False

    def record(self, stream: Stream | None = None) -> None:
        """Queue the event. A capture of a graph does not survive this."""
        DEVICE.asked_in_capture("record")
        Event.records += 1
        self._number += 1
        self._at, self._late = None, Event.records % 3 == 0
        number = self._number
        if self.kind != "hanging":
            (stream or DEVICE.stream).put(lambda: self._reach(number))

    def _reach(self, number: int) -> None:
        if number == self._number:  # else it was recorded again since, and only that counts
            self._at = DEVICE.stream.now()

    def query(self) -> bool:
        DEVICE.asked_in_capture("query")
        if self.kind == "failing" and Event.records > 100:
            raise RuntimeError("the simulated device is lost")
        return self._at is not None

    def synchronize(self) -> None:
        raise AssertionError("an event was waited for")  # the callback never waits for an event

    def elapsed_time(self, end_event: "Event") -> float:
        if self.kind == "raising" or self._at is None or end_event._at is None or not self._timing:
            raise RuntimeError("elapsed_time is not supported by these events")
        between = end_event._at - self._at
        if self.kind == "unordered":
            return between - end_event._late + self._late
        return float("nan") if self.kind == "nan" else between


class Tensor(torch.Tensor):
    """A tensor that says that it is on the device, over a tensor of the CPU."""

    host: torch.Tensor

    @staticmethod
    def __new__(cls, host: torch.Tensor, *, requires_grad: bool = False) -> "Tensor":  # noqa: PYI034 no subclass
        made = torch.Tensor._make_wrapper_subclass(
            cls, host.size(), strides=host.stride(), storage_offset=host.storage_offset(), dtype=host.dtype,
            device=PLACE, requires_grad=requires_grad,
        )  # fmt: skip
        made.host = host
        DEVICE.hold(made, host.untyped_storage())
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute on the CPU. A result that leaves the device waits for the device's work."""
        kwargs = dict(kwargs or {})
        name, stays = function._schema.name, True
        if "device" in kwargs:
            stays = kwargs["device"] is None or torch.device(kwargs["device"]).type == NAME
            kwargs["device"] = "cpu"
        copied_out = name == "aten::copy_" and not isinstance(args[0], Tensor)
        if not stays or copied_out or name == "aten::_local_scalar_dense":
            DEVICE.synchronize()
        result = function(*tree_map(_host, args), **tree_map(_host, kwargs))
        if name.endswith("_") and args and isinstance(args[0], torch.Tensor):
            return args[0]
        if kwargs.get("out") is not None:
            return kwargs["out"]
        return tree_map(_on_device, result) if stays else result


def _host(value: Any) -> Any:
    return value.host if isinstance(value, Tensor) else value


def _on_device(value: Any) -> Any:
    return Tensor(value) if isinstance(value, torch.Tensor) and not isinstance(value, Tensor) else value


class SimulatedDevice:
    """The device of this process."""

    def __init__(self, clock: str) -> None:
        self.stream = Stream(clock)
        self.capturing = False
        self.broken_by: str | None = None
        """First call about an event within a capture, which would have ended the capture."""
        self.allocated = self.peak = 0
        self._held: dict[int, int] = {}

    def busy(self, milliseconds: float) -> None:
        self.stream.busy(milliseconds)

    def synchronize(self, *_: Any) -> None:
        self.asked_in_capture("synchronize")
        self.stream.wait()

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Capture the work of the block, as for a CUDA graph. Work from `busy` is still queued, for simplicity."""
        self.capturing = True
        try:
            yield
        finally:
            self.capturing = False
        if self.broken_by is not None:
            raise RuntimeError(f"the capture was invalidated by {self.broken_by}()")

    def asked_in_capture(self, call: str) -> None:
        """Store the first call that a capture does not survive."""
        if self.capturing:
            self.broken_by = self.broken_by or call

    def hold(self, tensor: Tensor, storage: torch.UntypedStorage) -> None:
        """Count the bytes of a storage while a tensor on the device refers to the storage."""
        key = storage.data_ptr()
        self._held[key] = self._held.get(key, 0) + 1
        if self._held[key] == 1:
            self.allocated += storage.nbytes()
            self.peak = max(self.peak, self.allocated)
        weakref.finalize(tensor, self._drop, key, storage.nbytes()).atexit = False

    def _drop(self, key: int, size: int) -> None:
        self._held[key] -= 1
        if not self._held[key]:
            del self._held[key]
            self.allocated -= size


DEVICE: SimulatedDevice


def install(
    *, events: str | None = None, memory: str | None = None, clock: str | None = None, graphs: bool | None = None
) -> SimulatedDevice:
    """Add the device "sim" to torch. None: take the value of SIMULATED_EVENTS, and so on, or else the first kind.

    Args:
        events: One of `EVENTS`.
        memory: One of `MEMORY`.
        clock: One of `CLOCKS`.
        graphs: True: the module has `is_current_stream_capturing`, as CUDA's has.
    """
    global DEVICE
    events, memory, clock = [
        _one_of(kinds, given, variable)
        for kinds, given, variable in ((EVENTS, events, "EVENTS"), (MEMORY, memory, "MEMORY"), (CLOCKS, clock, "CLOCK"))
    ]
    graphs = os.environ.get("SIMULATED_GRAPHS") == "1" if graphs is None else graphs
    DEVICE, Event.kind = SimulatedDevice(clock), events
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_module(events, memory, graphs))
    torch.library.impl("aten::empty.memory_format", "PrivateUse1")(_empty)
    torch.library.impl("aten::empty_strided", "PrivateUse1")(_empty_strided)
    torch.library.impl("aten::_copy_from", "PrivateUse1")(_copy_from)
    return DEVICE


def _one_of(kinds: tuple[str, ...], given: str | None, variable: str) -> str:
    kind = given or os.environ.get(f"SIMULATED_{variable}") or kinds[0]
    if kind not in kinds:
        raise ValueError(f"{kind!r} is none of {kinds}")
    return kind


def _module(events: str, memory: str, graphs: bool) -> types.ModuleType:  # noqa: FBT001 within this file
    module: Any = types.ModuleType(f"torch.{NAME}")
    module.is_available = module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module.set_device = lambda *_: None
    module.get_device_name = lambda *_: "Simulated Accelerator"
    module.manual_seed = module.manual_seed_all = lambda *_: None
    module.get_rng_state = lambda *_: torch.get_rng_state()
    module.set_rng_state = lambda *_: None
    module.get_amp_supported_dtype = lambda: [torch.bfloat16]
    module.synchronize = lambda *_: DEVICE.synchronize()
    module.current_stream = lambda *_: DEVICE.stream
    module.empty_cache = lambda: None
    if events != "none":
        module.Event = Event
    if graphs:
        module.is_current_stream_capturing = lambda: DEVICE.capturing
    if memory != "none":
        module.memory_stats = _raising if memory == "raising" else _stats
    if memory in {"nested", "raising"}:
        module.memory_stats_as_nested_dict = _raising if memory == "raising" else _nested_stats
    return module


def _stats(*_: Any) -> dict[str, int]:
    sizes = {"current": DEVICE.allocated, "peak": DEVICE.peak}
    kinds = ("allocated", "reserved")
    return {f"{kind}_bytes.all.{time}": size for kind in kinds for time, size in sizes.items()} | {
        "num_alloc_retries": 0
    }


def _nested_stats(*_: Any) -> dict[str, Any]:
    sizes = {"all": {"current": DEVICE.allocated, "peak": DEVICE.peak}}
    return {"allocated_bytes": sizes, "reserved_bytes": sizes, "num_alloc_retries": 0}


def _raising(*_: Any) -> None:
    raise RuntimeError("the allocator keeps no statistics")


def _empty(size: Any, *, dtype: Any = None, memory_format: Any = None, **_: Any) -> Tensor:
    return Tensor(torch.empty(size, dtype=dtype, memory_format=memory_format or torch.contiguous_format))


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> Tensor:
    return Tensor(torch.empty_strided(size, stride, dtype=dtype))


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:  # noqa: FBT001, FBT002 as in torch
    _host(target).copy_(_host(source), non_blocking=non_blocking)
    return target
