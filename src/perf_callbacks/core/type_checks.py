"""Type checks for values that came from elsewhere, built from the annotations of the records they are meant for."""

import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Union, get_args, get_origin

LARGEST = 2**128
"""Integers are smaller than this: a larger one can't be turned into a float, and nothing counts as far."""

Form = Callable[[Any], bool]
"""A test of whether a value, lists being tuples, is of some type."""


def forms_of(kind: type) -> Mapping[str, Form]:
    """The test of each field of a dataclass, by its name."""
    return {item.name: form_of(item.type) for item in fields(kind)}


def form_of(annotation: Any) -> Form:
    """The test that an annotation stands for.

    >>> [form_of(tuple[int | None, ...])(value) for value in ((1, None), (1, "2"), [1])]
    [True, False, False]
    """
    arguments = get_args(annotation)
    if annotation is Any:
        return _anything
    if get_origin(annotation) in {types.UnionType, Union}:
        return _any_of([form_of(argument) for argument in arguments])
    if get_origin(annotation) is tuple:
        every = arguments[1:] == (...,)
        return _tuple_of(form_of(arguments[0])) if every else _tuple(tuple(map(form_of, arguments)))
    if get_origin(annotation) is Mapping:
        return _mapping_to(form_of(arguments[1]))
    if is_dataclass(annotation):
        return lambda value: type(value) is annotation
    return _PLAIN[annotation]


def is_number(value: Any) -> bool:
    """Check for a finite number. `True` is none."""
    return type(value) is float or _is_integer(value)


def _is_integer(value: Any) -> bool:
    return type(value) is int and -LARGEST < value < LARGEST


def _anything(_value: Any) -> bool:
    return True


def _any_of(forms: list[Form]) -> Form:
    return lambda value: any([fits(value) for fits in forms])


def _tuple_of(fits: Form) -> Form:
    """Check a column, at once where it has floats or is unknown throughout: journals hold millions of them."""
    of_floats = fits(0.5) and fits(None)

    def check(value: Any) -> bool:
        if type(value) is not tuple:
            return False
        return (of_floats and {*map(type, value)} <= _FLOATS) or all([fits(one) for one in value])

    return check


_FLOATS = {float, type(None)}


def _tuple(forms: tuple[Form, ...]) -> Form:
    def fits(value: Any) -> bool:
        if type(value) is not tuple or len(value) != len(forms):
            return False
        return all([form(one) for form, one in zip(forms, value, strict=True)])

    return fits


def _mapping_to(fits: Form) -> Form:
    return lambda value: type(value) is dict and all([fits(one) for one in value.values()])


_PLAIN: dict[Any, Form] = {
    str: lambda value: type(value) is str,
    bool: lambda value: type(value) is bool,
    int: _is_integer,
    float: is_number,
    type(None): lambda value: value is None,
}
