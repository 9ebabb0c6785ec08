"""Places in a training loop. A test acts there: it sleeps, or raises.

A path such as "trainer.evaluate" begins at an attribute of the training.
"""

import functools
import gc
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

ASIDE = ("evaluation", "checkpoint")


@dataclass(frozen=True)
class Place:
    """A place in a training loop, and the stage that time spent there belongs to."""

    stage: str | None
    """A stage of the step, or one of `ASIDE`; None if no stage is promised."""
    install: Callable | None = None
    """Has a training call a function at the place. None if the training's own code has the call."""
    when: str = "in a step"
    """Or "before the fit", "before the steps", "after the fit"."""


def nothing(*_args, **_kwargs):
    """Do nothing, at any place."""


def calling(act, method):
    """A method that first calls `act`."""

    @functools.wraps(method)
    def call(*args, **kwargs):
        act()
        return method(*args, **kwargs)

    return call


def method(path):
    """Replace a method on its object."""
    owner, _, name = path.rpartition(".")

    def install(training, act):
        owned = attrgetter(owner)(training)
        object.__setattr__(owned, name, calling(act, getattr(owned, name)))

    return install


def subclass(path):
    """Make the object one of a subclass with a method of its own."""
    owner, _, name = path.rpartition(".")

    def install(training, act):
        owned = attrgetter(owner)(training)
        owned.__class__ = type("Own", (type(owned),), {name: calling(act, getattr(type(owned), name))})

    return install


def registered(path, wrap=lambda act: act):
    """Hand the function to a method that registers it."""
    return lambda training, act: attrgetter(path)(training)(wrap(act))


def hooks(stage, *names, when="in a step"):
    """Hooks of another callback."""
    return {
        name: Place(stage, lambda training, act, name=name: setattr(training.other, name, act), when) for name in names
    }


def in_stages(**names):
    """Places in the training's own code, separated by commas, by their stages."""
    return {name: Place(stage) for stage, several in names.items() for name in several.split(", ")}


def collect_garbage(act):
    """Collect garbage; `act` is called while the collection lasts."""

    def linger(phase, _info):
        if phase == "start":
            act()

    gc.callbacks.append(linger)
    try:
        gc.collect(0)
    finally:
        gc.callbacks.remove(linger)


def collecting(act):
    """A hook that collects garbage."""
    return lambda *_: collect_garbage(act)
