"""Methods of a trainer, watched: each replacement does what the original does, and tells a recorder about it."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from perf_callbacks.core.marks import BACK, BEGIN
from perf_callbacks.core.stages import Stage
from perf_callbacks.host.failures import describe
from perf_callbacks.session.recorder import Recorder

P = ParamSpec("P")
T = TypeVar("T")


def stages(recorder: Recorder, owner: Any, name: str, stage: Stage, *, then: Stage | None = None) -> None:
    """The time in `owner.name` is `stage`; what follows is `then`, or what it was before."""
    begin, end = (BEGIN[stage], BACK) if then is None else (stage, then)
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
            finally:
                try:
                    tape.write((end, clock()))
                except Exception as error:  # noqa: BLE001 as above
                    fail(error)

        return call

    recorder.patches.method(owner, name, make)


def spans(recorder: Recorder, owner: Any, name: str, kind: str, *, first: Callable[[Recorder], object] = id) -> None:
    """The time in `owner.name` is part of no step. `first` is done before."""

    def make(inner: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(inner)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            recorder.begin_span(kind)
            recorder.attempt(first)
            try:
                return inner(*args, **kwargs)
            finally:
                recorder.end_span()

        return call

    recorder.patches.method(owner, name, make)


def batches(recorder: Recorder, owner: Any, name: str, *, argument: int) -> None:
    """`owner.name` gets a micro-batch as its n-th positional argument, `self` being the one at 0."""

    def make(inner: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(inner)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            if len(args) > argument:
                recorder.batch(args[argument])
            return inner(*args, **kwargs)

        return call

    recorder.patches.method(owner, name, make)


def exits(recorder: Recorder, owner: Any, name: str, *, last: bool = False) -> None:
    """What `owner.name` raises ends the fit: for a trainer that doesn't tell its callbacks of an exception.

    After the `last` of a trainer's calls the fit is over in any case.
    """

    def make(inner: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(inner)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                result = inner(*args, **kwargs)
            except BaseException as error:
                recorder.close(describe(error))
                raise
            if last:
                recorder.close()
            return result

        return call

    recorder.patches.method(owner, name, make)
