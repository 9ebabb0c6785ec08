"""Facts about a device of any kind."""

from typing import NamedTuple

from perf_callbacks.kernel.process.event_timeline import EventTimeline


class Allocator(NamedTuple):
    """State of a device's allocator, or the sums over several devices."""

    peak_bytes: int
    """Most bytes that tensors held at once since the program started or reset this value. The callback never resets
    this value."""
    reserved_bytes: int
    """Memory that the allocator holds, used or free."""
    retries: int
    """Number of allocations that failed at first. After each failure, the allocator freed cached memory and tried
    again."""
    allocated_bytes: int
    """Bytes that tensors hold now."""


class Timing(NamedTuple):
    """Clock of a fit's steps and stages."""

    timeline: EventTimeline | None = None
    """None: the host's clock."""
    unstaged: str | None = None
    """Reason why stages are not timed: the device computes asynchronously, and its events can't be used. None if stages
    are timed."""


class Features(NamedTuple):
    """Features of a device. None means that the feature is unknown or not available."""

    half: str | None = None
    """16-bit format that the device multiplies faster than float32: "bf16" or "fp16"."""
    tensor_cores: bool = False
    """True: the device has NVIDIA's tensor cores, whose speed depends on the sizes of the matrices."""
    tf32: bool = False
    """True: the device can multiply float32 numbers as TF32."""
    multiprocessors: int | None = None
    """Number of multiprocessors, or of compute units."""
    uuid: str | None = None
    """UUID for NVML."""
    architecture: str | None = None
    """Architecture of an AMD GPU, such as "gfx942". The name of the device alone may be ambiguous."""
