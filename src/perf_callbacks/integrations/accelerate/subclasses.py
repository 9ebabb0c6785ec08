"""Give an object a temporary subclass of its class, in order to watch its methods.

A method replaced on the object would refer to it, so that only a garbage collection frees it, and would be in every
copy and pickle. With a subclass, it is freed as usual, and copies and pickles have the original class.
"""

import copyreg
import weakref
from collections.abc import Callable, Mapping
from typing import Any, SupportsIndex

NEW: Any = vars(copyreg)["__newobj__"]


def watched(kind: Any, members: Mapping[str, object]) -> type:
    """Copies and pickles of the subclass's instances have the class `kind`."""

    def __reduce_ex__(self: Any, protocol: SupportsIndex) -> Any:  # noqa: N807 a special method
        reduced = kind.__reduce_ex__(self, protocol)
        if isinstance(reduced, str):
            return reduced
        function, arguments, *rest = reduced
        if function is NEW:  # pickle wants `__newobj__` to make an object of the same class
            function = kind.__new__
        return function, tuple(kind if argument is made else argument for argument in arguments), *rest

    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    made = type(kind.__name__, (kind,), names | {"__reduce_ex__": __reduce_ex__} | dict(members))
    return made


def put_on(owner: object, made: type) -> Callable[[], None]:
    """Set the class of an object. The returned function restores it, and doesn't keep the object alive."""
    kind, reference = type(owner), weakref.ref(owner)
    become = vars(object)["__class__"].__set__  # accelerate's loaders have a read-only property `__class__`

    def take_off() -> None:
        owned = reference()
        if owned is not None and type(owned) is made:  # otherwise other code has put another class on top
            become(owned, kind)

    become(owner, made)
    return take_off
