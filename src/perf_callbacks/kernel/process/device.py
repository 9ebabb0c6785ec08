"""One class per kind of device, and `Device` for any other accelerator that torch knows.

No other file names a kind of accelerator. Importing this file starts no device. A method that reads facts makes a
context on a device only if its docstring mentions the context.
"""

import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn

from perf_callbacks.kernel.failures import guard
from perf_callbacks.kernel.foreign_errors import suppress
from perf_callbacks.kernel.process.cpu_facts import local_ranks
from perf_callbacks.kernel.process.device_facts import Allocator, Features, Timing
from perf_callbacks.kernel.process.event_timeline import Event, EventTimeline, recording_on, why_unusable
from perf_callbacks.kernel.process.resident_memory import address_space_left, memory_available

EXPANDABLE = "expandable_segments:True"


class Device:
    """Works for every accelerator with torch's usual functions and events."""

    blocking_names: tuple[str, ...] = ()
    """Variables of the vendor's that make the host wait for each kernel. Empty: none is known."""
    uncached_names: tuple[str, ...] = ()
    """Variables that turn off the cache of device memory."""
    allocator_names: tuple[str, ...] = ()
    """Variables that can turn on expandable segments of memory. Advice uses the first."""
    clocks: str | None = None
    """Command that shows clocks and throttling. None: no command is known."""
    pinned_copies: bool | None = None
    """True: copies from pinned memory overlap with the device's work. None: the checklist only advises such memory."""
    reliable_events = False
    """True: events always work. A slow event only shows that the device is busy."""

    def __init__(self, place: torch.device) -> None:
        self.place = place
        self.index: int | None = place.index  # typed as an int in torch
        self.kind = place.type

    @property
    def module(self) -> Any:
        """Such as `torch.cuda`. None: torch has no module for this kind."""
        with suppress(RuntimeError):
            return torch.get_device_module(self.place)
        return None

    @property
    def name(self) -> str:
        """Such as "NVIDIA H200"; the kind if the name is unknown."""
        with suppress(Exception):  # no such function, or a driver that doesn't answer
            return str(self.module.get_device_name(self.place))
        return self.kind

    @property
    def untimed(self) -> str | None:
        return None

    def timing(self) -> Timing:
        """Return the clock for a fit. The call waits for the device, and may make a context."""
        why = self.untimed
        if why is not None:
            return Timing(unstaged=why)
        with guard() as attempt:
            return self._tried()
        return Timing(unstaged=f"{self.kind} can't be timed: {attempt.reason}")

    def _tried(self) -> Timing:
        make, place, current = self._maker(), self.place, getattr(self.module, "current_device", None)
        if self.index is None and current is not None:  # the program may turn to another device later
            place = torch.device(self.kind, current())
        record = recording_on(self.module, place)
        capturing = getattr(self.module, "is_current_stream_capturing", bool)
        why = None if capturing() else why_unusable(make, record, reliable=self.reliable_events)
        if why is not None:
            return Timing(unstaged=f"{self.kind} can't be timed: {why}")
        return Timing(EventTimeline(make, record=record, capturing=capturing, stream=self._stream(place)))

    def _stream(self, place: torch.device) -> Callable[[], object]:
        """Return what returns the current stream, or a constant if streams can't be compared."""
        with suppress(Exception):  # no such function, or another signature
            stream: Callable[[], object] = partial(self.module.current_stream, place)
            if stream() == stream():
                return stream
        return bool

    def _maker(self) -> Callable[[], Event]:
        own = getattr(self.module, "Event", None)
        return partial(torch.Event, self.place, enable_timing=True) if own is None else partial(own, enable_timing=True)

    def allocator(self) -> Allocator | None:
        """Don't wait for the device. None: it has no statistics."""
        with suppress(Exception):  # an allocator that is not torch's, or none
            module = self.module
            if hasattr(module, "memory_stats_as_nested_dict"):  # seven times as fast as `memory_stats`
                stats = module.memory_stats_as_nested_dict(self.place)
                allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
            else:
                stats = module.memory_stats(self.place)
                allocated, reserved = [
                    {time: stats[f"{kind}_bytes.all.{time}"] for time in ("current", "peak")}
                    for kind in ("allocated", "reserved")
                ]
            retries = stats.get("num_alloc_retries", 0)
            return Allocator(allocated["peak"], reserved["current"], retries, allocated["current"])
        return None

    def headroom(self) -> int | None:
        """Return the free bytes, also within the allocator. The process must have a context."""
        with suppress(Exception):  # no such function
            allocator = self.allocator()
            free = int(self.module.mem_get_info(self.place)[0])
            return None if allocator is None else free + allocator.reserved_bytes - allocator.allocated_bytes
        return None

    @property
    def captures(self) -> bool:
        """True during a capture of a graph, or if compiled code is captured, as with `mode="reduce-overhead"`."""
        with suppress(Exception):  # no such function
            if self.module.is_current_stream_capturing():
                return True
            trees: Any = sys.modules.get("torch._inductor.cudagraph_trees")
            index = self.module.current_device() if self.index is None else self.index
            return trees is not None and trees.get_manager(index, create_if_none_exists=False) is not None
        return False

    def features(self) -> Features:
        """The call makes a context if the program has made none."""
        return Features()

    def properties(self) -> Callable[[], Any] | None:
        """Return what reads torch's device properties. None: they have no PCI id."""
        return None

    def refuses(self) -> str | None:
        ask = self.properties()
        with guard() as attempt:
            if ask is not None:
                ask()
        return attempt.reason or None

    def multiplies_in_tf32(self, *, convolution: bool = False) -> bool:  # noqa: ARG002 for other kinds
        """Say if float32 matrix products (or, with `convolution`, float32 convolutions) use TF32."""
        return False

    @property
    def blocking(self) -> str | None:
        return next((name for name in self.blocking_names if os.environ.get(name, "0") not in {"", "0"}), None)

    @property
    def uncached(self) -> str | None:
        return next((name for name in self.uncached_names if name in os.environ), None)

    @property
    def expandable(self) -> str | None:
        """Setting that turns on expandable segments. None: they are on or not available."""
        names = self.allocator_names
        if not names or any(EXPANDABLE in os.environ.get(name, "") for name in names):
            return None
        return f"{names[0]}={EXPANDABLE}"


class Cpu(Device):
    """The host's clock times steps and stages."""

    @property
    def name(self) -> str:
        return self.kind

    @property
    def captures(self) -> bool:
        return False

    def timing(self) -> Timing:
        return Timing()

    def allocator(self) -> Allocator | None:
        return None

    def headroom(self) -> int | None:
        """Return what this rank can still allocate: its share of the memory, or less under `ulimit -v`."""
        _, ranks = local_ranks(os.environ) or (0, 1)
        available = memory_available()
        shared = None if available is None else available // ranks
        return min([amount for amount in (shared, address_space_left()) if amount is not None], default=None)


class Cuda(Device):
    """An NVIDIA GPU."""

    pinned_copies = True
    reliable_events = True
    blocking_names: tuple[str, ...] = ("CUDA_LAUNCH_BLOCKING",)
    uncached_names: tuple[str, ...] = ("PYTORCH_NO_CUDA_MEMORY_CACHING",)
    allocator_names: tuple[str, ...] = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    clocks = "nvidia-smi -q -d PERFORMANCE"

    def properties(self) -> Callable[[], Any]:
        """Calling the result makes a context."""
        return partial(torch.cuda.get_device_properties, self.place)

    def features(self) -> Features:
        """By compute capability: tensor cores since V100, TF32 and bf16 since A100."""
        with suppress(Exception):  # CUDA doesn't start
            properties, capability = self.properties()(), torch.cuda.get_device_capability(self.place)
            return Features(
                half="bf16" if capability >= (8, 0) else "fp16" if capability >= (7, 0) else None,
                tensor_cores=capability >= (7, 0),
                tf32=capability >= (8, 0),
                multiprocessors=int(properties.multi_processor_count),
                uuid=str(properties.uuid) if hasattr(properties, "uuid") else None,  # an older torch has none
            )
        return Features()

    def multiplies_in_tf32(self, *, convolution: bool = False) -> bool:
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        newer, older = (getattr(cudnn, "conv", None), cudnn) if convolution else (matmul, matmul)
        precision = getattr(newer, "fp32_precision", None)  # since torch 2.9; then the older switch may raise an error
        return (bool(older.allow_tf32) if precision is None else precision == "tf32") and self.features().tf32


class Rocm(Cuda):
    """torch calls an AMD GPU "cuda", like an NVIDIA GPU."""

    blocking_names = ("AMD_SERIALIZE_KERNEL", "HIP_LAUNCH_BLOCKING", "CUDA_LAUNCH_BLOCKING")
    uncached_names = ("PYTORCH_NO_HIP_MEMORY_CACHING", "PYTORCH_NO_CUDA_MEMORY_CACHING")
    allocator_names = ()
    clocks = "rocm-smi --showclocks"

    def features(self) -> Features:
        """By architecture: MI100 has fp16, MI200 and later have bf16, and MI300 has TF32."""
        with suppress(Exception):  # as above
            properties = self.properties()()
            name = str(properties.gcnArchName).partition(":")[0]
            return Features(
                half="bf16" if name.startswith(("gfx90a", "gfx94", "gfx95")) else "fp16" if name == "gfx908" else None,
                tf32=name.startswith("gfx94"),
                multiprocessors=int(properties.multi_processor_count),
                architecture=name,
            )
        return Features()

    def multiplies_in_tf32(self, *, convolution: bool = False) -> bool:
        """Ask torch's older switch too: it reads HIPBLASLT_ALLOW_TF32, if this torch does (pytorch/pytorch#143549)."""
        with suppress(RuntimeError):  # the program has used the newer switch, and this torch needs no variable
            return super().multiplies_in_tf32(convolution=convolution) and bool(torch.backends.cuda.matmul.allow_tf32)
        return True


class Xpu(Device):
    """An Intel GPU."""

    pinned_copies = True

    def features(self) -> Features:
        """bf16 is the fast 16-bit format if the device has matrix engines."""
        with suppress(Exception):  # as above
            capability = torch.xpu.get_device_capability(self.place)
            units = getattr(torch.xpu.get_device_properties(self.place), "max_compute_units", None)
            return Features(
                half="bf16" if capability.get("has_subgroup_matrix_multiply_accumulate") else None,
                multiprocessors=units,
            )
        return Features()


class Npu(Device):
    """An Ascend NPU, which torch uses through `torch_npu`."""

    pinned_copies = True
    blocking_names = ("ASCEND_LAUNCH_BLOCKING",)
    uncached_names = ("PYTORCH_NO_NPU_MEMORY_CACHING",)
    allocator_names = ("PYTORCH_NPU_ALLOC_CONF",)
    clocks = "npu-smi info"


class Hpu(Device):
    """A Gaudi, by `habana_frameworks`."""

    pinned_copies = True

    @property
    def untimed(self) -> str | None:
        """A Gaudi can't be timed in lazy mode, the default of older versions of torch for Gaudi."""
        if os.environ.get("PT_HPU_LAZY_MODE") == "0":
            return None
        return "hpu may only record operations, and compute them later, unless PT_HPU_LAZY_MODE=0"


class Mps(Device):
    """An Apple GPU."""

    pinned_copies = False

    @property
    def untimed(self) -> str | None:
        """Reading an event of MPS waits for the device, and may hang the process (reported with torch 2.10)."""
        return "reading an event of mps waits for the device"


class Xla(Device):
    """A TPU, or another device that torch uses through `torch_xla`."""

    pinned_copies = False

    @property
    def untimed(self) -> str | None:
        """Events would time only the recording."""
        return "xla only records operations, and computes them later"


KINDS: dict[str, type[Device]] = {
    "cpu": Cpu, "cuda": Cuda, "xpu": Xpu, "npu": Npu, "hpu": Hpu, "mps": Mps, "xla": Xla,
}  # fmt: skip


def device_at(place: torch.device) -> Device:
    if _built_for_rocm() and place.type == "cuda":
        return Rocm(place)
    return KINDS.get(place.type, Device)(place)


def may_be_nvidia(place: torch.device) -> bool:
    return not _built_for_rocm() and place.type in {"cpu", "cuda"}


def cuda_version() -> str | None:
    return torch.version.cuda


def default(local_rank: int) -> torch.device:
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        return torch.device("cpu")
    return torch.device(accelerator.type, local_rank if local_rank < torch.accelerator.device_count() else 0)


def of_model(model: nn.Module | None, place: torch.device, number: int = 1) -> tuple[Device, ...]:
    """Return `place`, then its kind's other devices with parameters; for DataParallel, the first `number`."""
    if place.type == "cpu":
        return (device_at(place),)
    places = [place]
    for parameter in () if model is None else model.parameters():
        if parameter.device.type == place.type and parameter.device not in places:
            places.append(parameter.device)
    if device_at(place).index is None and len(places) > 1:  # "cuda" is the current device, which has a number elsewhere
        del places[0]
    first = [torch.device(place.type, index) for index in range(number)]
    if len(places) < number and places[0] in first:
        places = [places[0], *[other for other in first if other != places[0]]]
    return tuple(map(device_at, places))


def allocators(devices: Iterable[Device]) -> Allocator | None:
    states = [device.allocator() for device in devices]
    readings = [state for state in states if state is not None]
    return Allocator(*map(sum, zip(*readings, strict=True))) if readings and len(readings) == len(states) else None


def synchronize() -> None:
    """Wait for the accelerator, if this process has started it."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        return
    module = device_at(accelerator).module
    if getattr(module, "is_initialized", bool)():
        getattr(module, "synchronize", torch.accelerator.synchronize)()


def _built_for_rocm() -> bool:
    version: Any = torch.version
    return getattr(version, "hip", None) is not None
