"""Lines of the program that keep the training thread busy: the watchdog's thread looks at it once a second."""

import threading
from collections import Counter
from contextlib import suppress
from typing import Any

from perf_callbacks.core.observer import Observer
from perf_callbacks.core.stages import Stage
from perf_callbacks.host import stacks
from perf_callbacks.host.watchdog import WATCHDOG
from perf_callbacks.session.recorder import Recorder

FEWEST_LOOKS = 3
"""Looks at a line without which it isn't named. Fewer may be chance."""

LEAST_PART = 0.25
"""Part of the looks at its stage that the line needs, too."""

MOST_LINES = 256
"""Lines of a stage that are counted; a program whose lines are more has none that stands out."""

FACTS = {Stage.OTHER: "host_line", Stage.DATA: "data_line"}
"""Stages in which the program's own code runs, and the fields of `Facts` that name the line."""


class BusyLines(Observer):
    """Counts the lines of the program that the training thread is seen in, by stage. The thread does nothing for it."""

    def __init__(self, recorder: Recorder) -> None:
        self._engine = recorder.engine
        self._calls = recorder.collect_calls
        self._thread = threading.get_ident()
        self._lines: dict[Stage, Counter[str]] = {stage: Counter() for stage in FACTS}
        self._looks: Counter[Stage] = Counter()
        self._ended = False
        with suppress(RuntimeError):  # no thread to be had
            WATCHDOG.watch(self)

    def tick(self, now: float) -> bool:  # noqa: ARG002 the watchdog calls with the time
        """Look at the thread once."""
        stage, _ = self._engine.tape.turned()
        lines = self._lines.get(stage)
        if not self._ended and lines is not None and not self._engine.aside:
            self._looks[stage] += 1
            line = stacks.busy_line(self._thread)
            if line is not None and (line in lines or len(lines) < MOST_LINES):
                lines[line] += 1
        return not self._ended

    def closed(self) -> None:
        """Look no more."""
        self._ended = True

    def facts(self) -> dict[str, Any]:
        """Return the fields of `Facts` that name lines; None where none stands out."""
        found: dict[str, Any] = {}
        for stage, name in FACTS.items():
            (line, looks), *_ = [*self._lines[stage].most_common(1), ("", 0)]
            found[name] = line if looks >= max(FEWEST_LOOKS, LEAST_PART * self._looks[stage]) else None
        calls = self._calls
        return {**found, "collect_line": max(calls, key=calls.__getitem__) if calls else None}
