"""Objects watched through a subclass of their own, so that nothing of ours lies in their attributes.

A method that is replaced on an object refers to it, so only a garbage collection frees the object, and it travels into
every copy and every pickle. A subclass does neither: the object is freed as soon as it would be otherwise, and copies
and pickles are of the original class.
"""

import copyreg
import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any, SupportsIndex

NEW: Any = vars(copyreg)["__newobj__"]


def watched(kind: Any, members: Mapping[str, object]) -> type:
    """Make a subclass that differs from `kind` in these members alone, and that pickles and copies as `kind`."""

    def __reduce_ex__(self: Any, protocol: SupportsIndex) -> Any:  # noqa: N807 it is one
        reduced = kind.__reduce_ex__(self, protocol)
        if isinstance(reduced, str):
            return reduced
        function, arguments, *rest = reduced
        if function is NEW:  # pickle insists that it makes an object of the same class
            function = kind.__new__
        return function, tuple(kind if one is made else one for one in arguments), *rest

    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    made = type(kind.__name__, (kind,), names | {"__reduce_ex__": __reduce_ex__} | dict(members))
    return made


def put_on(owner: object, made: type) -> Callable[[], None]:
    """Give an object another class, and return what gives it its own back. The object is held weakly."""
    kind = type(owner)  # not its `__class__`: accelerate's loaders say that theirs is torch's
    _become(owner, made)
    return functools.partial(_take_off, weakref.ref(owner), made, kind)


def _take_off(reference: "weakref.ref[object]", made: type, kind: type) -> None:
    owner = reference()
    if owner is not None and type(owner) is made:  # else somebody else put another one on top
        _become(owner, kind)


def _become(owner: object, kind: type) -> None:
    """Set the class, past a property that lets nobody set it."""
    vars(object)["__class__"].__set__(owner, kind)
