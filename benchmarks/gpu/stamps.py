"""Times of steps and stages by events that are recorded here, beside the callback's."""

import itertools
import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from gpu.bench import Bench, Row, records, train
from gpu.models import Case
from perf_callbacks.kernel.records.fit_records import Run, Steps, Summary
from perf_callbacks.kernel.settings.config import PerfConfig

FIRST = 2
"""The first step and the counted one are in no figure."""

COLUMNS = ("case", "what", "truth", "ours", "difference", "worst step")


class Stamped(Case):
    """A step that notes when forward and backward begin and end."""

    def __init__(
        self, case: Case, bench: Bench, around: Callable[[], AbstractContextManager[object]] = nullcontext
    ) -> None:
        """Take over a case.

        Args:
            case: The case.
            bench: Makes the stamps.
            around: Makes a context for each step, such as a stream.
        """
        self.__dict__ |= case.__dict__
        self.stamps: list[list[Any]] = []
        self._stamp, self._around = bench.stamp, around

    def step(self, batch: dict[str, Any]) -> None:  # type: ignore[override]
        with self._around():
            noted = [self._stamp()]
            loss = self.model(**batch).loss
            noted.append(self._stamp())
            loss.backward()
            noted.append(self._stamp())
            self.optimizer.step()
            self.stamps.append([*noted, self._stamp()])
            self.optimizer.zero_grad()


def stamped(
    bench: Bench, case: Case, steps: int, around: Callable[[], AbstractContextManager[object]] = nullcontext
) -> tuple[Stamped, PerfConfig, Summary | None]:
    """Train, measured by both."""
    noted, config = Stamped(case, bench, around), bench.config(gc="observe")
    summary = train(bench, noted, [case.batch] * steps, config).summary
    return noted, config, summary


def clock(config: PerfConfig) -> str:
    """Our clock, and the reason for no stages if there is one."""
    run = records(config, Run)[0]
    return run.timeline if run.unstaged is None else f"{run.timeline}: {run.unstaged}"


def times(bench: Bench, case: Stamped, config: PerfConfig, name: str | None = None) -> Iterator[Row]:
    """Each time beside ours. Steps without a time of ours are in no figure, but in the number of steps."""
    blocks = records(config, Steps)
    for what, true in true_times(bench, case).items():
        column = [one for block in blocks for one in getattr(block, what) or [None] * len(block.step)]
        pairs = [*zip(column[FIRST:], true[FIRST - 1 :], strict=False)]
        apart = [(ours - truth) * 1e6 for ours, truth in pairs if ours is not None]
        usual = statistics.median(true[FIRST - 1 :])
        cells = ("—", "—", f"{len(apart)} of {len(pairs)} steps have a time")
        if apart:
            worst = f"{max(apart, key=abs):+.2f} us of {len(apart)} steps"
            cells = (*beside(usual, usual + statistics.median(apart) / 1e6, 1e3), worst)
        yield name or case.name, what, f"{usual * 1e3:.4f} ms", *cells


def true_times(bench: Bench, case: Stamped) -> dict[str, list[float]]:
    """Seconds by the stamps, from the second step on."""
    found = {"step_time": [bench.seconds(a[-1], b[-1]) for a, b in itertools.pairwise(case.stamps)]}
    for place, what in enumerate(("forward_time", "backward_time")):
        found[what] = [bench.seconds(one[place], one[place + 1]) for one in case.stamps[1:]]
    return found


def beside(true: float, ours: float | None, scale: float) -> tuple[str, str]:
    """Our figure, and its difference from the truth."""
    if ours is None:
        return "—", "—"
    return f"{ours * scale:.5g}", f"{ours / true - 1:+.3%}" if true else "—"
