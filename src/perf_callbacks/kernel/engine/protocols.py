"""Inputs of the engine besides events: an accelerator's clock and the other ranks."""

from typing import Protocol

from perf_callbacks.kernel.engine.marks import Mark
from perf_callbacks.kernel.engine.windows import JobSettings, Part
from perf_callbacks.kernel.records.fit_records import Window


class DeviceTimeline(Protocol):
    """The same marks on an accelerator's clock. Times come late, in order, and sometimes never."""

    def mark(self, mark: Mark) -> None:
        """Put a mark into the stream, between earlier and later work."""

    def ready(self) -> list[tuple[float, ...] | None]:
        """Return the stage seconds of the steps that finished since the last call; None for a lost step."""
        ...


class Ranks(Protocol):
    """The other ranks of a job, as far as this rank knows of them. Only `agree` and `close` wait."""

    @property
    def job_settings(self) -> JobSettings | None:
        """Settings of this fit that hold for all ranks; None: not known yet."""

    def agree(self) -> JobSettings | None:
        """Wait a moment for the settings."""
        ...

    @property
    def window(self) -> int | None:
        """Optimizer steps per window; None: ranks exchange no windows, or the length is not known yet."""

    @property
    def latest(self) -> Window | None:
        """Last window of all ranks that this rank knows; None before the first window."""

    @property
    def signals(self) -> bool:
        """True: parts carry signals. False: parts carry no signals, or this is not known yet."""
        ...

    def offer(self, part: Part) -> None:
        """Offer this rank's part of a window to the other ranks."""

    def take(self) -> list[Window]:
        """Take the windows that this rank has to write and has not taken before."""
        ...

    def close(self) -> None:
        """End the exchange with the other ranks."""
