"""Items of the checklist, in the order in which they are applied and shown."""

from perf_callbacks.affinity.item import CpuAffinity
from perf_callbacks.garbage.item import Garbage
from perf_callbacks.kernel.fit.item import Item
from perf_callbacks.loaders.item import Loaders

EARLY: tuple[Item, ...] = (Loaders(), CpuAffinity())
"""Items that have to be applied before the loaders start."""

ITEMS: tuple[Item, ...] = (Garbage(), *EARLY)
