"""A stand-in for the garbage collector, driven by hand, and places where one can be put."""

from perf_callbacks.checklist import garbage, growth
from perf_callbacks.host import custody, environment


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

    def isenabled(self):
        return self.enabled

    def enable(self):
        self.enabled = True

    def disable(self):
        self.enabled = False

    def freeze(self):
        self.frozen += self.alive
        self.alive = 0

    def unfreeze(self):
        self.alive += self.frozen
        self.frozen = 0

    def get_freeze_count(self):
        return self.frozen

    def get_threshold(self):
        return self.threshold

    def get_count(self):
        return (self.young, 0, 0)

    def collect(self, generation=2):
        self.collected.append(generation)
        self.young = 0
        return 0

    @property
    def state(self):
        return self.enabled, self.frozen >= custody.OWN_FROZEN, self.threshold, list(self.callbacks)


def put(monkeypatch, fake):
    """In place of the collector; with it, nobody has it in custody."""
    ours = custody.Custody()
    ours._heard_of_forks = True
    for module in (garbage, growth, custody, environment):
        monkeypatch.setattr(module, "gc", fake)
    for module in (garbage, environment):
        monkeypatch.setattr(module, "CUSTODY", ours)
    return fake
