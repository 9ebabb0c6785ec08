"""Changes to objects of other code, and how to undo them."""

import functools
import inspect
from collections.abc import Callable
from types import MethodType
from typing import Any

_ABSENT = object()


class Patches:
    """Changes that are undone in reverse order.

    If other code replaced an attribute on top of ours, its replacement stays. Ours beneath it still works, since every
    replacement passes its call on.
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def add(self, *undo: Callable[[], object]) -> None:
        """Record how to undo a change that was made."""
        self._undo += undo

    def replace(self, owner: Any, name: str, make: Callable[[Any], object]) -> None:
        """Replace `owner.name` by `make(the original)`. An owner without that name is left alone."""
        current = getattr(owner, name, None)
        if current is None:
            return
        before = vars(owner).get(name, _ABSENT)
        after = make(current)
        setattr(owner, name, after)
        self.add(functools.partial(_put_back, owner, name, before, after))

    def method(self, owner: Any, name: str, make: Callable[[Any], Callable[..., object]]) -> None:
        """Replace a method by `make(its function)`: torch's schedulers need `optimizer.step.__func__`.

        If the owner is a class, the method of all its instances is replaced.
        """
        if isinstance(owner, type):
            self.replace(owner, name, make)
            return
        self.replace(owner, name, lambda current: MethodType(make(_unbound(current, owner)), owner))

    def restore(self) -> None:
        """Undo all changes. A second call does nothing; a change that can't be undone doesn't stop the others."""
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

    del call.__wrapped__  # its signature has no `self` to remove
    return call


def _put_back(owner: Any, name: str, before: object, after: object) -> None:
    if vars(owner).get(name, _ABSENT) is not after:
        return
    if before is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, before)
