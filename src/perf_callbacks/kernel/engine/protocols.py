"""The engine's other inputs: an accelerator's clock and the other ranks."""

from typing import Protocol

from perf_callbacks.kernel.engine.marks import Mark
from perf_callbacks.kernel.engine.windows import Part, Verdict
from perf_callbacks.kernel.records.fit_records import Window


class DeviceTimeline(Protocol):
    """The same marks on an accelerator's clock. Times come late, in order, and sometimes never."""

    def mark(self, mark: Mark) -> None:
        """Mark the stream: work that is queued from here on comes after."""

    def ready(self) -> list[tuple[float, ...] | None]:
        """Stage seconds of the steps that finished since the last call; None for a lost one."""
        ...


class Ranks(Protocol):
    """The other ranks of a job, as far as this rank knows of them. Only `agree` and `close` wait."""

    @property
    def verdict(self) -> Verdict | None:
        """Settings of this fit that hold for all ranks; None: not known yet."""

    def agree(self) -> Verdict | None:
        """Wait a moment for these settings."""
        ...

    @property
    def window(self) -> int | None:
        """Optimizer steps after which ranks tell each other what they did; None where they don't, or not yet."""

    @property
    def latest(self) -> Window | None:
        """The last window that is known of all of them; None before the first."""

    @property
    def signals(self) -> bool:
        """True: parts carry signals. False: they carry none, or this is not known yet."""
        ...

    def offer(self, part: Part) -> None:
        """Tell the others what this rank did in a window."""

    def take(self) -> list[Window]:
        """The windows that are to be written down here and were not yet."""
        ...

    def close(self) -> None:
        """End the exchange with them."""
