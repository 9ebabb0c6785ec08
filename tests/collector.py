"""A stand-in for the garbage collector, driven by hand, and places where one can be put."""

import gc

from perf_callbacks.garbage import growth, item as gc_item
from perf_callbacks.kernel.fit import environment
from perf_callbacks.kernel.process import collector


def automatic():
    """Whether the real collector runs by itself."""
    return gc.isenabled() and gc.get_threshold()[0] != 0


class FakeGc:
    """As the module `gc`. Nothing is ever collected; what was asked for is kept."""

    def __init__(self, *, enabled=True, frozen=0, threshold=(700, 10, 10)):
        self.enabled = enabled
        self.frozen = frozen
        self.alive = 5000
        self.young = 0
        self.threshold = threshold
        self.collected = []
        self.callbacks = []
        self.owner = None
        """The collector's owner, whose mark a freeze takes along."""
        self._taken_along = []

    def isenabled(self):
        return self.enabled

    def enable(self):
        self.enabled = True

    def disable(self):
        self.enabled = False

    def freeze(self):
        self.frozen += self.alive
        self.alive = 0
        self._taken_along.append(self.owner and self.owner.frozen_mark)

    def unfreeze(self):
        self.alive += self.frozen
        self.frozen = 0
        self._taken_along.clear()

    def get_freeze_count(self):
        return self.frozen

    def get_objects(self):
        mark = self.owner and self.owner.frozen_mark
        return [] if any(one is mark for one in self._taken_along) else [mark]

    def get_threshold(self):
        return self.threshold

    def set_threshold(self, *threshold):
        self.threshold = threshold

    def get_count(self):
        return (self.young, 0, 0)

    def collect(self, generation=2):
        self.collected.append(generation)
        self.young = 0
        return 0

    @property
    def automatic(self):
        return self.enabled and self.threshold[0] != 0

    @property
    def state(self):
        return self.automatic, self.frozen >= collector.OWN_FROZEN, self.threshold, list(self.callbacks)


def count_freezes(monkeypatch):
    """Count freezes instead of freezing. What is frozen for good, so that full collections are quick, isn't counted."""
    frozen = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(2 * collector.OWN_FROZEN))
    monkeypatch.setattr(gc, "unfreeze", frozen.clear)
    monkeypatch.setattr(gc, "get_freeze_count", lambda: sum(frozen))


def put(monkeypatch, fake):
    """In place of the collector; with it, no fit has a claim on it."""
    fake.owner = ours = collector.Collector()
    for module in (growth, collector):
        monkeypatch.setattr(module, "gc", fake)
    for module in (gc_item, environment, collector):
        monkeypatch.setattr(module, "COLLECTOR", ours)
    return fake
