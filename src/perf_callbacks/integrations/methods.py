"""Replacements for methods of a trainer: each calls the original method and records the call.

Each is a single function, because calls of Python functions are the main cost of recording.
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
    """Count calls of `owner.name` as a stage. After it, `then` begins, or else the stage before goes on."""
    begin, end = (BEGIN[stage], BACK) if then is None else (stage, then)
    turns(recorder, owner, name, begin, end, ends_fit=ends_fit)


def turns(
    recorder: Recorder, owner: Any, name: str, begin: Mark, end: Mark | None = None, *, ends_fit: bool = False
) -> None:
    """Write the marks `begin` before and `end` after each call of `owner.name`.

    A plain function on an instance is replaced by a plain function, as torch's schedulers set `optimizer.step`: a
    method would be slower. Any other is replaced by a method.
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

    method = getattr(owner, name, None)
    plain = method is not None and not inspect.ismethod(method) and not isinstance(owner, type)
    (recorder.patches.replace if plain else recorder.patches.method)(owner, name, make)


def batches(recorder: Recorder, owner: Any, name: str, *, argument: int, ends_fit: bool = False) -> None:
    """Record a positional argument of each call as a micro-batch; `self` has position 0."""
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
    """Exclude calls from all steps. `first` runs before; `after` only on success, with the first argument."""

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

    @functools.wraps(inner)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:  # neither `before` nor `after` may raise
        before()
        result = inner(*args, **kwargs)
        after(result)
        return result

    return call


def others(recorder: Recorder, owner: Any, name: str, part: str) -> None:
    """Add calls of `owner.name` to a part of the stage `other`, except those during another stage."""

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
    """Return None in any stage but `Stage.OTHER` and `Stage.UNDECIDED`."""
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
    """End the fit if a call raises, which some trainers don't report, and with `last` in any case."""

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
