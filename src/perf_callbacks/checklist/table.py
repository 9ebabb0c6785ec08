"""Items of the checklist, in the order in which they are applied and shown."""

from perf_callbacks.checklist.affinity_item import CpuAffinity
from perf_callbacks.checklist.gc_item import Garbage
from perf_callbacks.checklist.item import Item
from perf_callbacks.checklist.loaders import Loaders

EARLY: tuple[Item, ...] = (Loaders(), CpuAffinity())
"""Items that have to be applied before the loaders start."""

ITEMS: tuple[Item, ...] = (Garbage(), *EARLY)
