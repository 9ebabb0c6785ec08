"""Replacements for methods of a trainer: each calls the original method and records the call.

Each replacement is a single function, because calls of Python functions are the main cost of recording.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from perf_callbacks.kernel.engine.marks import BACK, BEGIN, Mark
from perf_callbacks.kernel.engine.stages import Stage
from perf_callbacks.kernel.failures import guard
from perf_callbacks.kernel.fit.recorder import Recorder

P = ParamSpec("P")
T = TypeVar("T")


def stages(
    recorder: Recorder, owner: Any, name: str, stage: Stage, *, then: Stage | None = None, ends_fit: bool = False
) -> None:
    """Count the time in calls of the method `owner.name` as the stage `stage`.

    After the call, the stage `then` begins. If `then` is None, the stage that was active before the call continues. If
    `ends_fit` is True, an exception from the call ends the fit.
    """
    begin, end = (BEGIN[stage], BACK) if then is None else (stage, then)
    turns(recorder, owner, name, begin, end, ends_fit=ends_fit)


def turns(
    recorder: Recorder, owner: Any, name: str, begin: Mark, end: Mark | None = None, *, ends_fit: bool = False
) -> None:
    """Write the mark `begin` before each call of the method `owner.name`, and the mark `end` after each call.

    A mark is, for example, the beginning of a stage. If `end` is None, no mark follows a call. If `ends_fit` is True,
    an exception from the call ends the fit.

    A plain function on an instance is replaced by a plain function, and a method by a method. For example, torch's
    schedulers set `optimizer.step` to a plain function. If a method replaced a plain function, each call would be
    slower.
    """
    tape, clock, fail = recorder.tape, recorder.clock, recorder.fail

    def make(inner: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(inner)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                tape.write((begin, clock()))
            except Exception as error:  # noqa: BLE001 an observer never ends the run
                fail(error)
            try:
                return inner(*args, **kwargs)
            except BaseException as error:
                if ends_fit:
                    recorder.close(error)
                raise
            finally:
                if end is not None:
                    try:
                        tape.write((end, clock()))
                    except Exception as error:  # noqa: BLE001 as above
                        fail(error)

        return call

    found = getattr(owner, name, None)
    plain = found is not None and not inspect.ismethod(found) and not isinstance(owner, type)
    (recorder.patches.replace if plain else recorder.patches.method)(owner, name, make)


def batches(recorder: Recorder, owner: Any, name: str, *, argument: int, ends_fit: bool = False) -> None:
    """Record one positional argument of each call of the method `owner.name` as a micro-batch.

    `argument` is the position of this argument, where `self` has position 0.
    If `ends_fit` is True, an exception from the call ends the fit.
    """
    take = recorder.batch

    def make(inner: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(inner)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            if len(args) > argument:
                take(args[argument])
            try:
                return inner(*args, **kwargs)
            except BaseException as error:
                if ends_fit:
                    recorder.close(error)
                raise

        return call

    recorder.patches.method(owner, name, make)


def spans(
    recorder: Recorder,
    owner: Any,
    name: str,
    kind: str,
    *,
    first: Callable[[Recorder], object] | None = None,
    after: Callable[[object], object] | None = None,
) -> None:
    """Exclude the time in calls of the method `owner.name` from all steps.

    The function `first` runs before the excluded time begins. The function `after` runs after each successful call, and
    gets the call's first argument after `self`.
    """

    def make(inner: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(inner)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            if first is not None:
                recorder.attempt(first)
            recorder.begin_span(kind)
            try:
                result = inner(*args, **kwargs)
                receive = after
                if receive is not None:
                    given = next(iter([*args[1:], *kwargs.values()]), None)
                    recorder.attempt(lambda _: receive(given))
                return result
            finally:
                recorder.end_span()

        return call

    recorder.patches.method(owner, name, make)


def around(
    inner: Callable[P, T], *, before: Callable[[], object] = int, after: Callable[[T], object] = id
) -> Callable[P, T]:
    """Return a wrapper of a method that calls `before`, then the method, and then `after` with the method's result.

    Neither `before` nor `after` may raise an exception.
    """

    @functools.wraps(inner)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        before()
        result = inner(*args, **kwargs)
        after(result)
        return result

    return call


def others(recorder: Recorder, owner: Any, name: str, part: str) -> None:
    """Add the time in calls of the method `owner.name` to a part of the stage `other`. `part` is the name of this part.

    A call during a stage such as `forward` doesn't count.
    """

    def make(inner: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(inner)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            began, before, recorder.tape.part = _since(recorder), recorder.tape.part, part
            try:
                return inner(*args, **kwargs)
            finally:
                recorder.tape.part = before
                recorder.attempt(functools.partial(_add_other, part=part, began=began))

        return call

    recorder.patches.method(owner, name, make)


def _since(recorder: Recorder) -> float | None:
    """Return the current time if the current stage is `Stage.OTHER` or `Stage.UNDECIDED`. Otherwise return None."""
    with guard(recorder.fail):
        stage, _ = recorder.tape.turned()
        return None if recorder.engine.open_spans or stage not in {Stage.OTHER, Stage.UNDECIDED} else recorder.clock()
    return None


def _add_other(recorder: Recorder, *, part: str, began: float | None) -> None:
    if began is not None and recorder.active and recorder.engine.excluded is None:
        recorder.engine.account.other_seconds[part] += recorder.clock() - began


def exits(
    recorder: Recorder,
    owner: Any,
    name: str,
    *,
    last: bool = False,
    before: Callable[[Recorder], object] | None = None,
) -> None:
    """End the fit if a call of the method `owner.name` raises an exception.

    Some trainers don't report exceptions to callbacks. If `last` is True, the fit also ends after a successful call. If
    an exception ends the fit, the function `before` is called first, for example to end the current step.
    """

    def make(inner: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(inner)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                result = inner(*args, **kwargs)
            except BaseException as error:
                if before is not None:
                    recorder.attempt(before)
                recorder.close(error)
                raise
            if last:
                recorder.close()
            return result

        return call

    recorder.patches.method(owner, name, make)
