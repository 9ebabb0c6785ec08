"""Places in a training loop. A test acts there: it sleeps, or raises."""

import functools
import gc
from collections.abc import Callable
from dataclasses import dataclass

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


def override(name, owner):
    """A place: a method of an object, replaced on the object before training."""

    def install(training, act):
        owned = owner(training)
        object.__setattr__(owned, name, calling(act, getattr(owned, name)))

    return install


def hook(name, stage="other", when="in a step"):
    """A hook of another callback."""
    return Place(stage, lambda training, act: setattr(training.other, name, act), when)


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


def collecting(layer):
    """A collection in each call of a layer."""
    return Place("gc", lambda training, act: layer(training).register_forward_pre_hook(lambda *_: collect_garbage(act)))
