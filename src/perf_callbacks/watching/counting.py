"""Counting FLOPs in a fit: the second optimizer step, and whatever later has a shape that tells nothing by itself."""

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from threading import get_ident
from typing import Any

import torch
from torch import nn

from perf_callbacks.core.batches import ShapeKey
from perf_callbacks.core.peaks import Peaks, advice
from perf_callbacks.core.rating import rate
from perf_callbacks.core.records import Flops
from perf_callbacks.core.shapes import extent
from perf_callbacks.core.steps import COUNTED, RECOUNTED, plus
from perf_callbacks.core.work import Work
from perf_callbacks.flops import offline
from perf_callbacks.flops.counter import FlopCounter
from perf_callbacks.flops.offline import Example
from perf_callbacks.flops.window import CountWindow
from perf_callbacks.host.failing import describe
from perf_callbacks.host.measured_peaks import forget
from perf_callbacks.host.peaks import find
from perf_callbacks.host.recorder import Recorder, log
from perf_callbacks.watching.counted import counted, estimated

FREE_COUNTS = 3
"""Steps that may be counted in any case."""

STEPS_PER_COUNT = 50
"""Beyond these, one step in so many."""

MOST_OWED = 256
"""Shapes that are remembered for being counted later."""

EAGER_MEMORY = 0.5
"""A compiled model that fills more of its device than this is not run eagerly."""


def begin(recorder: Recorder, model: nn.Module | None) -> None:
    """Find out what the steps of this fit take, unless its configuration says otherwise."""
    how = recorder.run.config["flops"]
    if not recorder.active or how == "off":
        return
    counting = Counting(recorder, model, live=how == "count")
    recorder.companions.append(counting)
    recorder.reader.news = counting.see
    recorder.patches.add(counting.close)


class Counting:
    """Opens a window in which FLOPs are counted, and puts down what was counted.

    The step in which one is open is in no row. The first step is left alone: it is the one in which things are made,
    and compiled. Evaluation is never counted. Where nothing may run eagerly to be counted, what it would take is worked
    out without running it, and so called.
    """

    def __init__(self, recorder: Recorder, model: nn.Module | None, *, live: bool) -> None:
        self._recorder = recorder
        self._model = model
        self._live = live
        self._thread = get_ident()
        self._window: CountWindow | None = None
        self._left: list[CountWindow] = []
        self._before = 0
        self._steps = self._counts = self._spans = 0
        self._done = False
        self._examples: dict[ShapeKey, Example] = {}
        """Batches of shapes whose work is not known yet."""

    def end_step(self, step: int) -> None:
        """An optimizer step is over."""
        self._steps += 1
        window = self._window
        if window is not None:
            self._shut(window)
            self._window = None
            self._put_down(window.counter, step)

    def begin_step(self) -> None:
        """The next one begins."""
        if self._recorder.work.refuted:
            self._look_at_peak()
        if not self._examples and self._done:
            return
        if self._live and self._eager():
            if not self._done:
                self._open()
            elif self._affordable():
                self._await()
        else:
            self._work_out()

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

    def see(self, shape: ShapeKey, tensors: Mapping[str, Any]) -> None:
        """A batch of a new shape is about to be trained on, or evaluated."""
        if not shape or self._recorder.work.knows(shape):
            return
        here = self._window is None and not self._spans and get_ident() == self._thread
        if here and self._done and self._live and self._affordable() and self._eager():
            self._open()
        if len(self._examples) < MOST_OWED:
            self._examples[shape] = Example.of(tensors)

    def close(self) -> None:
        """Count no more."""
        self._recorder.reader.news = self._model = None
        with ExitStack() as windows:  # an interrupt in one of them must not keep the others open
            for window in (*self._left, self._window):
                if window is not None:
                    windows.callback(window.close)
        self._window = None

    def _affordable(self) -> bool:
        return self._counts < FREE_COUNTS or self._counts * STEPS_PER_COUNT < self._steps

    def _eager(self) -> bool:
        """Whether a step may run eagerly.

        After the second one, a rank that does so among compiled ones might order its collectives otherwise. Attention
        that is compiled keeps no scores, nor does a compiled model keep all that an eager one does.
        """
        if getattr(getattr(self._model, "config", None), "_attn_implementation", None) == "flex_attention":
            return False
        return not _compiled() or not (self._full() or (self._done and self._recorder.run.world_size > 1))

    def _full(self) -> bool:
        device = self._recorder.device
        if device.type != "cuda":
            return False
        total = torch.cuda.get_device_properties(device).total_memory
        return torch.cuda.max_memory_allocated(device) > EAGER_MEMORY * total

    def _await(self) -> None:
        """The next batch of a shape that is not known is to be told of again."""
        for shape in self._examples:
            self._recorder.reader.forget(shape)
        self._examples.clear()

    def _open(self) -> None:
        self._await()
        self._before = len(self._recorder.batches)
        self._recorder.reader.note()
        self._recorder.exclude(RECOUNTED if self._done else COUNTED)
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
        """A step without a loss, or one that was skipped, tells nothing: the next one may.

        Nor does one in which something raised, and training went on with another batch.
        """
        self._recorder.look_up(counter.observed.lookups)
        total, batches = counter.work(), self._recorder.batches[self._before :]
        if not total.model_flops or (counter.interrupted and len(batches) > 1):
            self._done = self._done or not self._affordable()
            return
        self._done = True
        work = self._recorder.work
        passes = [Work(cells) for cells in counter.passes]
        work.optimizer = total.only("optimizer")
        work.learn([batch.shape for batch in batches], [one.without("optimizer") for one in passes])
        self._examples = {shape: example for shape, example in self._examples.items() if not work.knows(shape)}
        tokens = plus(*[self._recorder.reader.with_tokens(batch).tokens for batch in batches])
        self._conclude(counted(counter, step, tokens, whole_step=not self._before, compiled=_compiled()), total)

    def _conclude(self, record: Flops, total: Work) -> None:
        self._recorder.write(record)
        work = self._recorder.work
        peaks = work.rating.peaks if work.rating is not None else self._peaks(total)
        work.rate(rate(total, coverage=record.coverage, lower_bound=record.lower_bound, peaks=peaks))

    def _peaks(self, total: Work) -> Peaks | None:
        """Once in a fit. It may take a second, which is part of a step that is in no row."""
        recorder = self._recorder
        found = find(recorder.device, total.by_dtype, recorder.config)
        if found is None and recorder.run.rank == 0:
            log.warning("perf_callbacks: %s", advice(recorder.run.device))
        return found

    def _look_at_peak(self) -> None:
        """A peak that was measured, and is lower than what was done since, is to be measured anew the next time."""
        self._recorder.work.refuted = False
        log.warning("perf_callbacks: more was done than the measured peak allows; there is no MFU and no HFU any more.")
        forget(self._recorder.device)

    def _work_out(self) -> None:
        """Of each shape that is not known, without running it: the last resort is a closed form."""
        self._recorder.exclude(RECOUNTED if self._done else COUNTED)
        self._done = True
        examples, self._examples = self._examples, {}
        for shape, example in examples.items():
            if self._model is not None and not self._recorder.work.knows(shape):
                self._estimate(self._model, shape, example)

    def _estimate(self, model: nn.Module, shape: ShapeKey, example: Example) -> None:
        work, (rows, length) = self._recorder.work, extent(shape)
        try:
            counter = offline.count(model, example)
            record = counted(counter, self._recorder.step, rows * length, source="offline", compiled=_compiled())
            total = counter.work()
        except Exception as error:  # noqa: BLE001 models may do in their forward what they like
            log.info("perf_callbacks could not count on empty tensors: %s.", describe(error))
            if "input_ids" not in example.tensors:
                return
            total = offline.closed_form(model, rows, length)
            record = estimated(total, self._recorder.step)
        if not total.model_flops:
            return
        work.learn([shape], [total])
        self._conclude(record, total)


def _compiled() -> bool:
    """Whether torch's compiler has compiled anything in this process."""
    compiler: Any = sys.modules.get("torch._dynamo.utils")
    return compiler is not None and bool(compiler.counters["stats"].get("unique_graphs"))
