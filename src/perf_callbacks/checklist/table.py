"""Items of the checklist, in the order in which they are applied and shown."""

from perf_callbacks.checklist.gc_item import Garbage
from perf_callbacks.checklist.item import Item
from perf_callbacks.checklist.loaders import Loaders

LOADERS: Item = Loaders()
ITEMS: tuple[Item, ...] = (Garbage(), LOADERS)
