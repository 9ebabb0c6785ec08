"""Lines of the program that keep the training thread busy, sampled once a second by the watchdog's thread."""

import threading
from collections import Counter
from typing import Any

from perf_callbacks.kernel.engine.observer import Observer
from perf_callbacks.kernel.engine.stages import Stage
from perf_callbacks.kernel.fit.recorder import Recorder
from perf_callbacks.kernel.foreign_errors import suppress
from perf_callbacks.kernel.process import stacks
from perf_callbacks.kernel.process.watchdog import WATCHDOG

FEWEST_LOOKS = 3
"""Fewest samples of a function before the callback names a line of the function. Fewer may be chance."""

LEAST_PART = 0.5
"""Least share of a stage's samples in which a function must appear before the callback names a line of the function."""

MOST_LINES = 256
"""Most lines to count per stage. In a program that is busy in more lines, no line stands out."""

FACTS = {Stage.OTHER: "host_line", Stage.DATA: "data_line"}
"""Stages in which the program's own code runs, and the fields of `Facts` that name the line."""


class BusyLines(Observer):
    """Samples the training thread from another thread, and counts the program's lines by stage.

    A sample counts only when its step has ended. Work before the first batch or after the last batch is part of no
    step.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._engine = recorder.engine
        self._calls = recorder.collect_calls
        self._thread = threading.get_ident()
        self._lines: dict[Stage, Counter[str | None]] = {stage: Counter() for stage in FACTS}
        self._step, self._seen = -1, list[tuple[Stage, str | None]]()  # of the step that has not ended
        self._ended = False
        with suppress(RuntimeError):  # no thread available
            WATCHDOG.watch(self)

    def tick(self, now: float) -> bool:  # noqa: ARG002 the watchdog calls with the time
        """Sample the training thread once."""
        engine = self._engine
        if engine.step != self._step:
            self._count()
        stage, _ = engine.tape.turned()
        if not self._ended and stage in self._lines and engine.excluded is None:
            self._seen.append((stage, stacks.busy_line(self._thread)))
        return not self._ended

    def closed(self) -> None:
        """Stop sampling."""
        self._ended = True

    def facts(self) -> dict[str, Any]:
        """Return the fields of `Facts` about lines of the program. None: no line stands out."""
        found: dict[str, Any] = {name: self._most(self._lines[stage]) for stage, name in FACTS.items()}
        calls = dict(self._calls)
        return {
            **found,
            "collect_line": max(calls, key=calls.__getitem__, default="") or None,
            "collect_seconds": sum(calls.values()),
        }

    def _count(self) -> None:
        """Count the samples of a step that has ended."""
        for stage, line in self._seen:
            lines = self._lines[stage]
            if line in lines or len(lines) < MOST_LINES:
                lines[line] += 1
        self._step, self._seen = self._engine.step, []

    @staticmethod
    def _most(lines: Counter[str | None]) -> str | None:
        """Return the most frequent line of the most frequent function. None: no function stands out."""
        functions: Counter[str] = Counter()
        for line, looks in lines.items():
            if line is not None:
                functions[_function(line)] += looks
        for function, looks in functions.most_common(1):
            if looks >= max(FEWEST_LOOKS, LEAST_PART * lines.total()):
                return next(line for line, _ in lines.most_common() if line and _function(line) == function)
        return None


def _function(line: str) -> str:
    """Return a line without its number.

    >>> _function("train.py:31 `parse`")
    'train.py `parse`'
    """
    file, _, rest = line.partition(":")
    return f"{file} {rest.partition(' ')[2]}"
