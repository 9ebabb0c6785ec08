"""Calls of methods whose objects may have been freed."""

import weakref
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def weakly(method: Callable[P, T]) -> Callable[P, T | None]:
    """Call `method` without keeping its object alive. Once the object is freed, the call returns None."""
    reference = weakref.WeakMethod(method)

    def call(*args: P.args, **kwargs: P.kwargs) -> T | None:
        bound = reference()
        return None if bound is None else bound(*args, **kwargs)

    return call
