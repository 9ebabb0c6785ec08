"""Who goes along with a fit, and does something at its steps."""

from typing import Protocol


class Companion(Protocol):
    """Who does something at each step of a fit. What it raises ends the measuring, never the training."""

    def end_step(self, step: int) -> None:
        """An optimizer step is over; what is done here is still part of it."""

    def begin_step(self) -> None:
        """The next one begins."""

    def leave(self) -> None:
        """The loop leaves its loader, in the midst of a step or not: it may be over, and nobody may say so."""

    def begin_span(self) -> None:
        """What follows is part of no step. Spans nest."""

    def end_span(self) -> None:
        """The innermost span is over."""


class Companions(list[Companion]):
    """All of them, told in turn."""

    def end_step(self, step: int) -> None:
        """As `Companion.end_step`, and so the others."""
        for companion in self:
            companion.end_step(step)

    def begin_step(self) -> None:
        """The next step begins."""
        for companion in self:
            companion.begin_step()

    def leave(self) -> None:
        """The loop leaves its loader."""
        for companion in self:
            companion.leave()

    def begin_span(self) -> None:
        """What follows is part of no step."""
        for companion in self:
            companion.begin_span()

    def end_span(self) -> None:
        """The innermost span is over."""
        for companion in self:
            companion.end_span()
