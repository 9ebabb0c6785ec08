"""Watched calls of a plain loop that fetches its batches itself, without a loader."""

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import torch
from torch import nn

from perf_callbacks.integrations.loop.watch import LoopWatch
from perf_callbacks.kernel.batches.reader import Batch
from perf_callbacks.kernel.engine.stages import Stage
from perf_callbacks.kernel.engine.steps import plus
from perf_callbacks.kernel.fit.recorder import Recorder, log
from perf_callbacks.kernel.process.stacks import callers


class LoaderlessWatch(LoopWatch):
    """Watches a loop without a loader, which can report its batches with `perf.batch`.

    Until it does, the shapes of the model's arguments look up FLOPs. They don't show the number of samples: a loop may
    call a model several times with the same ones.
    """

    def __init__(self, recorder: Recorder, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(recorder, model, optimizer)
        self._inputs = self._take_inputs
        self._reported = False  # whether the loop has reported a batch
        self._amounts: tuple[int | None, int | None] = None, None
        """Samples and tokens reported before the next call of the model."""

    @contextmanager
    def data(self) -> Iterator[None]:
        waits = not self.evaluating
        if waits:
            self.turn(Stage.DATA)
        try:
            yield
        finally:
            if waits:
                self.turn(Stage.OTHER)

    def report(self, batch: Any, samples: int | None, tokens: int | None) -> None:
        """Amounts alone belong to the last, else the next batch. After a batch, the model's inputs aren't read."""
        amounts = _amount("samples", samples), _amount("tokens", tokens)
        if self.thread == get_ident():
            self._end_evaluation()
        self.optimizing = 0
        if batch is None:
            self._report_amounts(*amounts)
            return
        if not self._reported:
            self._reported = True
            self.recorder.engine.batches.clear()
        self.first_batch.see(batch)
        reading = self.recorder.reader.read(batch)
        early, self._amounts = self._amounts, (None, None)
        samples, tokens = [
            _more(read if amount is None else amount, before or None)
            for amount, read, before in zip(amounts, reading[:2], early, strict=True)
        ]
        self.recorder.add(reading._replace(samples=samples, tokens=tokens))

    def _report_amounts(self, samples: int | None, tokens: int | None) -> None:
        batches = self.recorder.engine.batches
        if batches:
            last = batches[-1]
            batches[-1] = last._replace(samples=_more(last.samples, samples), tokens=_more(last.tokens, tokens))
            self._amounts = samples and 0, tokens and 0
        else:
            self._amounts = _more(self._amounts[0], samples), _more(self._amounts[1], tokens)

    def _end_step(self, *_: object) -> None:
        super()._end_step()
        for calls in self._calls:
            if calls.model._compiled_call_impl is not calls.compiled:  # noqa: SLF001 nothing public
                calls.again()

    _end_step._torchdynamo_disable = True  # type: ignore[attr-defined]  # noqa: SLF001 as in `LoopWatch`

    def _take_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.optimizing and not self._is_stepping():
            self.optimizing = 0
        if self._reported or self.spans:
            return
        numbered = {str(number): argument for number, argument in enumerate(args)}
        batch = args[0] if len(args) == 1 and not kwargs else {**numbered, **kwargs}
        self.first_batch.see(batch)
        shape = self.recorder.reader.read(batch).shape
        samples, tokens = self._amounts
        self._amounts = samples and 0, tokens and 0
        self.recorder.add(Batch(samples, tokens, None, shape))

    def _is_stepping(self) -> bool:
        return any(
            [frame.f_code.co_name == "step" and frame.f_locals.get("self") is self._optimizer for frame in callers()]
        )


def _amount(name: str, amount: Any) -> int | None:
    """Log a wrong number once, and return None."""
    try:
        number = None if amount is None else operator.index(amount)
    except TypeError:
        number = -1
    if number is None or (number >= 0 and not isinstance(amount, bool)):
        return number
    if name not in warned:
        warned.add(name)
        log.warning("perf_callbacks: perf.batch(%s=%r): wanted a whole number; the amount is unknown.", name, amount)
    return None


warned: set[str] = set()  # arguments of `perf.batch` for which a wrong number was logged


def _more(total: int | None, reported: int | None) -> int | None:
    return total if reported is None else plus(total or 0, reported)
