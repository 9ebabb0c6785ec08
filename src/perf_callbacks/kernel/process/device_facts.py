"""Facts about a device of any kind."""

from typing import NamedTuple

from perf_callbacks.kernel.process.event_timeline import EventTimeline


class Allocator(NamedTuple):
    """State of a device's allocator, or the sums over several devices."""

    peak_bytes: int
    """Most that tensors held since the program started or reset this value. We never reset it."""
    reserved_bytes: int
    """Used or free."""
    retries: int
    """Allocations that failed at first: the allocator then freed cached memory and tried again."""
    allocated_bytes: int


class Timing(NamedTuple):
    """Clock of a fit's steps and stages."""

    timeline: EventTimeline | None = None
    unstaged: str | None = None
    """Why stages are not timed: the device computes asynchronously, and its events can't be used."""


class Features(NamedTuple):
    """None: unknown or not available."""

    half: str | None = None
    """16-bit format that the device multiplies faster than float32: "bf16" or "fp16"."""
    tensor_cores: bool = False
    """NVIDIA's, whose speed depends on the sizes of the matrices."""
    tf32: bool = False
    multiprocessors: int | None = None
    uuid: str | None = None
    architecture: str | None = None
    """Of an AMD GPU, such as "gfx942": its name alone may be ambiguous."""
