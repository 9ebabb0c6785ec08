"""Changes attributes of other code's objects, and undoes the changes."""

import functools
import inspect
import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any

_ABSENT = object()


class Replacement:
    """A replaced attribute, until `put_back`. If other code has replaced ours since, ours stays and keeps working.

    If that was a later fit, its own `put_back` restores the original.
    """

    def __init__(self, owner: Any, name: str, after: object) -> None:
        self._owner, self._name, self._after = owner, name, after
        self.before = vars(owner).get(name, _ABSENT)
        setattr(owner, name, after)
        _REPLACEMENTS.append(weakref.ref(self, _REPLACEMENTS.remove))

    def put_back(self) -> None:
        owner, name = self._owner, self._name
        if vars(owner).get(name, _ABSENT) is not self._after:
            for later in [reference() for reference in _REPLACEMENTS[:]]:
                if later is not None and later.before is self._after:
                    later.before = self.before
        elif self.before is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, self.before)


_REPLACEMENTS: list[weakref.ref[Replacement]] = []
"""Of all fits and threads, not put back yet."""


class Patches:
    """Changes that are undone in reverse order."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def add(self, *undo: Callable[[], object]) -> None:
        self._undo += undo

    def replace(self, owner: Any, name: str, make: Callable[[Any], object]) -> None:
        """Replace `owner.name` by the result of `make(owner.name)`, if there is such an attribute."""
        current = getattr(owner, name, None)
        if current is None:
            return
        self.add(Replacement(owner, name, make(current)).put_back)

    def method(self, owner: Any, name: str, make: Callable[[Any], Callable[..., object]]) -> None:
        """Replace a method (a class's for all instances) by one: schedulers need `optimizer.step.__func__`."""
        if isinstance(owner, type):
            self.replace(owner, name, make)
            return
        self.replace(owner, name, lambda current: MethodType(make(_unbound(current, owner)), owner))

    def restore(self) -> None:
        """Undo all changes. Idempotent. An error in an undo doesn't stop the remaining undos."""
        errors: list[BaseException] = []
        while self._undo:
            try:
                self._undo.pop()()
            except BaseException as error:  # noqa: BLE001 the rest must still be undone, after an interrupt too
                errors.append(error)
        if errors:
            raise next((error for error in errors if not isinstance(error, Exception)), errors[0])


def _unbound(current: Any, owner: Any) -> Callable[..., object]:
    if inspect.ismethod(current) and current.__self__ is owner:
        return current.__func__

    @functools.wraps(current)
    def call(_self: object, /, *args: Any, **kwargs: Any) -> object:
        return current(*args, **kwargs)

    del call.__wrapped__  # else `inspect.signature` takes the first argument of `current` for `self`
    return call
