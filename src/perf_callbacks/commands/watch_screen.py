"""The terminal of `perf-callbacks watch`, which draws frames with rich and reads keys. No other module imports rich."""

import itertools
import os
import select
import signal
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from types import FrameType

from rich.console import Console, ConsoleDimensions
from rich.live import Live
from rich.segment import Segment, Segments
from rich.style import Style
from typing_extensions import Self

from perf_callbacks.commands.outcomes import ExitStatus
from perf_callbacks.kernel.clock import sleep
from perf_callbacks.kernel.foreign_errors import suppress
from perf_callbacks.report.styled_lines import Line, encodable
from perf_callbacks.report.watch_frame import TerminalSize

try:
    import termios
    import tty
except ImportError:  # Windows
    termios = tty = None  # type: ignore[assignment]

STYLES = {
    "": Style.null(),
    "dim": Style(dim=True),
    "strong": Style(bold=True),
    "good": Style(color="green"),
    "warning": Style(color="yellow", bold=True),
    "bad": Style(color="red", bold=True),
}

USUAL_SIZE = (80, 24)


def _frame(lines: Iterable[Line], *, ends: bool = False) -> Segments:
    """With `ends`, a newline follows the bottom line."""
    segments: list[Segment] = []
    for line in lines:
        segments += [Segment(span.text, STYLES[span.style]) for span in line]
        segments.append(Segment.line())
    return Segments(segments if ends else segments[:-1])


def print_lines(lines: Sequence[Line]) -> None:
    console = _console()
    console.print(_frame(encodable(lines, console.encoding), ends=True), overflow="ignore", crop=False)


def _console(*, forced: bool | None = None) -> Console:
    return Console(highlight=False, markup=False, emoji=False, force_terminal=forced)


class Screen:
    """The alternate screen of a terminal, and its keyboard. At the end, the terminal's settings are restored."""

    def __init__(self) -> None:
        self._console = _console(forced=True)  # the caller knows that there is a terminal
        self._live = Live(console=self._console, screen=True, auto_refresh=False)
        self._input: int | None = None
        self._last: Sequence[Line] = ()
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._undo.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, _terminated))
            self._listen()
            self._undo.callback(self._leave)
            self._live.start()
        except BaseException:  # also Ctrl-C
            self._undo.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def _leave(self) -> None:
        """Print the first paragraph of the last frame."""
        self._live.stop()
        paragraph = itertools.takewhile(bool, self._last)
        self._console.print(_frame(paragraph, ends=True), overflow="ignore", crop=False)

    def _listen(self) -> None:
        """Make the terminal send keys at once, without echo. On Windows or without a terminal, no keys are read."""
        if termios is None or tty is None or sys.stdin is None or not sys.stdin.isatty():
            return
        terminal = sys.stdin.fileno()
        self._undo.callback(termios.tcsetattr, terminal, termios.TCSADRAIN, termios.tcgetattr(terminal))
        self._input = terminal
        tty.setcbreak(terminal)
        attributes = termios.tcgetattr(terminal)
        attributes[6][termios.VSUSP] = b"\0"  # Ctrl-Z would leave the shell on the alternate screen
        termios.tcsetattr(terminal, termios.TCSANOW, attributes)

    def size(self) -> TerminalSize:
        columns, rows = USUAL_SIZE
        with suppress(OSError, ValueError):
            columns, rows = os.get_terminal_size(sys.stdout.fileno())
        self._console.size = ConsoleDimensions(columns or USUAL_SIZE[0], rows or USUAL_SIZE[1])
        return TerminalSize(columns=self._console.size.width, rows=self._console.size.height)

    def draw(self, lines: Sequence[Line]) -> None:
        self._last = encodable(lines, self._console.encoding)
        self._live.update(_frame(self._last), refresh=True)

    def keys(self, seconds: float) -> str:
        """Wait for a key, and return those that were pressed, without escape sequences. "q" if the terminal is gone."""
        if self._input is None:
            sleep(seconds)
            return ""
        if not select.select([self._input], [], [], seconds)[0]:
            return ""
        pressed = os.read(self._input, 1024)
        if not pressed:
            return "q"
        return "" if pressed.startswith(b"\x1b") else pressed.decode(errors="replace").lower()


def _terminated(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(ExitStatus.TERMINATED)
