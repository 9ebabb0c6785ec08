"""The engine's other inputs: an accelerator's clock and the other ranks."""

from typing import Protocol

from perf_callbacks.kernel.engine.marks import Mark
from perf_callbacks.kernel.engine.windows import Part
from perf_callbacks.kernel.records.fit_records import Window


class DeviceTimeline(Protocol):
    """The same marks on an accelerator's clock. Times come late, in order, and sometimes never."""

    def mark(self, mark: Mark) -> None:
        """Mark the stream: work that is queued from here on comes after."""

    def ready(self) -> list[tuple[float, ...] | None]:
        """Stage seconds of the steps that finished since the last call; None for a lost one."""
        ...


class Ranks(Protocol):
    """The other ranks of a job, as far as they are heard of. Nothing here waits."""

    @property
    def window(self) -> int | None:
        """Optimizer steps after which ranks tell each other what they did; None where they don't, or not yet."""

    @property
    def latest(self) -> Window | None:
        """The last window that is known of all of them; None before the first."""

    @property
    def signals(self) -> bool:
        """True: parts carry signals. False: they carry none, or this is not known yet."""

    def offer(self, part: Part) -> None:
        """Tell the others what this rank did in a window."""

    def take(self) -> list[Window]:
        """The windows that are to be written down here and were not yet."""
        ...
