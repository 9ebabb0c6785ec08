"""Counting FLOPs in a fit: the second optimizer step, and whatever later has a shape that tells nothing by itself."""

import sys
from threading import get_ident
from typing import Any

from perf_callbacks.core.batches import ShapeKey
from perf_callbacks.core.records import Flops
from perf_callbacks.core.steps import plus
from perf_callbacks.core.work import Work
from perf_callbacks.flops.counter import FlopCounter
from perf_callbacks.flops.window import CountWindow
from perf_callbacks.host.recorder import Recorder

FREE_COUNTS = 3
"""Steps that may be counted in any case."""

STEPS_PER_COUNT = 50
"""Beyond these, one step in so many."""

MOST_OWED = 1024
"""Shapes that are remembered for being counted later."""

ENOUGH = 0.98
"""Coverage under this makes of FLOPs a lower bound."""

_HEAVIEST = 20


def begin(recorder: Recorder) -> None:
    """Count what this recorder measures, unless its configuration says otherwise."""
    if recorder.active and recorder.run.config["flops"] == "count":
        counting = Counting(recorder)
        recorder.companions.append(counting)
        recorder.reader.news = counting.see
        recorder.patches.add(counting.close)


class Counting:
    """Opens a window in which FLOPs are counted, and puts down what was counted.

    The step in which one is open is in no row. The first step is left alone: it is the one in which things are made,
    and compiled. Evaluation is never counted.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._thread = get_ident()
        self._window: CountWindow | None = None
        self._left: list[CountWindow] = []
        self._before = 0
        self._steps = self._counts = self._spans = 0
        self._due = False
        self._done = False
        self._owed: set[ShapeKey] = set()

    def end_step(self, step: int) -> None:
        """An optimizer step is over."""
        self._steps += 1
        window = self._window
        if window is not None:
            self._window = None
            self._shut(window)
            self._put_down(window.counter, step)
        self._due = not self._done

    def begin_step(self) -> None:
        """The next one begins."""
        if self._due and self._may_count():
            self._open()
        elif self._owed and self._affordable():
            for shape in self._owed:
                self._recorder.reader.forget(shape)
            self._owed.clear()

    def begin_span(self) -> None:
        """Evaluation or the like begins: it is not counted."""
        self._spans += 1
        if self._window is not None:
            self._window.close()

    def end_span(self) -> None:
        """It is over."""
        self._spans = max(0, self._spans - 1)
        if self._window is not None and not self._spans:
            self._window.open()

    def see(self, shape: ShapeKey) -> None:
        """A batch of a new shape is about to be trained on, or evaluated."""
        if not shape or (self._done and (self._window is not None or self._recorder.work.knows(shape))):
            return
        if not self._done or self._spans or get_ident() != self._thread or not self._affordable():
            if len(self._owed) < MOST_OWED:
                self._owed.add(shape)
        elif self._may_count():
            self._open()

    def close(self) -> None:
        """Count no more."""
        window, self._window = self._window, None
        if window is not None:
            self._shut(window)
        for window in self._left:
            window.close()

    def _affordable(self) -> bool:
        return self._counts < FREE_COUNTS or self._counts * STEPS_PER_COUNT < self._steps

    def _may_count(self) -> bool:
        """After the second step, a rank that runs eagerly among compiled ones might order its collectives otherwise."""
        return not (self._done and self._recorder.run.world_size > 1 and _compiled())

    def _open(self) -> None:
        self._before = len(self._recorder.batches)
        self._recorder.exclude("counted")
        self._counts += 1
        self._window = CountWindow()
        if not self._spans:
            self._window.open()

    def _shut(self, window: CountWindow) -> None:
        window.close()
        self._left = [one for one in (*self._left, window) if one.left_behind]
        for one in self._left:
            one.close()

    def _put_down(self, counter: FlopCounter, step: int) -> None:
        """A step without a loss, or one that was skipped, tells nothing: the next one may."""
        total = counter.work()
        if not total.model_flops:
            self._done = self._done or not self._affordable()
            return
        self._done = True
        work, batches = self._recorder.work, self._recorder.batches[self._before :]
        passes = [Work(cells) for cells in counter.passes]
        work.optimizer = Work({cell: flops for cell, flops in total.cells.items() if cell.phase == "optimizer"})
        work.learn([batch.shape for batch in batches], [_without_optimizer(one) for one in passes])
        record = self._record(counter, total, step, plus(*[batch.tokens for batch in batches]))
        work.coverage, work.lower_bound = record.coverage, record.lower_bound
        self._recorder.write(record)

    def _record(self, counter: FlopCounter, total: Work, step: int, tokens: int | None) -> Flops:
        coverage, observed = counter.weights.coverage(), counter.observed
        six_n = 6 * counter.weights.multiplied_elements() * (tokens or 0)
        return Flops(
            step=step,
            model_flops=total.model_flops,
            hardware_flops=total.hardware_flops,
            by_phase=total.by_phase,
            by_dtype=total.by_dtype,
            source="counted",
            coverage=coverage,
            uncounted=dict(observed.unknown),
            lower_bound=bool(observed.unknown or counter.errors) or (coverage is not None and coverage < ENOUGH),
            whole_step=not self._before,
            compiled=_compiled(),
            logical_flops=sum(counter.logical.values()) or None,
            causal_flops=observed.causal_flops,
            over_six_n=total.model_flops / six_n if six_n else None,
            products=tuple((*what, flops) for what, flops in observed.products.most_common(_HEAVIEST)),
            copies=tuple((*what, size) for what, size in observed.copies.most_common(_HEAVIEST)),
            reads=dict(observed.reads),
            errors=dict(counter.errors),
        )


def _without_optimizer(work: Work) -> Work:
    return Work({cell: flops for cell, flops in work.cells.items() if cell.phase != "optimizer"})


def _compiled() -> bool:
    """Whether torch's compiler has compiled anything in this process."""
    compiler: Any = sys.modules.get("torch._dynamo.utils")
    return compiler is not None and bool(compiler.counters["stats"].get("unique_graphs"))
