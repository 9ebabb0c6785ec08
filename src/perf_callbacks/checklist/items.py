"""The items of the checklist, in the order in which they are applied and shown."""

from perf_callbacks.checklist.garbage import Garbage
from perf_callbacks.checklist.item import Item

ITEMS: tuple[Item, ...] = (Garbage(),)
