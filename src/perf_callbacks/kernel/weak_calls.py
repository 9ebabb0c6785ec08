"""Calls of a method whose object may be freed before the call."""

import weakref
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def weakly(method: Callable[P, T]) -> Callable[P, T | None]:
    """Wrap a method in a function that holds its object weakly, and returns None once the object is freed."""
    reference = weakref.WeakMethod(method)

    def call(*args: P.args, **kwargs: P.kwargs) -> T | None:
        found = reference()
        return None if found is None else found(*args, **kwargs)

    return call
