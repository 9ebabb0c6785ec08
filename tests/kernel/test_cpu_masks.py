"""The masks of a process's threads: narrowed for fits, and restored."""

import os
from contextlib import suppress

import pytest

from perf_callbacks.kernel.process.cpu_masks import Affinity, Threads
from perf_callbacks.kernel.process.cpu_sets import parse

MAIN = 1


class Fit:
    """A fit."""


FIT, ONE, OTHER, OLD, NEW = [Fit() for _ in range(5)]


class FakeThreads:
    """Threads of a process. Some vanish between being listed and being looked at."""

    def __init__(self, *masks):
        self.masks = dict(enumerate(map(parse, masks), MAIN))
        self.vanishing, self.refused, self.moves = set(), None, 0

    def all(self):
        return [*self.masks, *self.vanishing]

    def get(self, thread):
        if thread in self.vanishing:
            raise ProcessLookupError
        return self.masks[thread]

    def set(self, thread, cpus):
        self.moves += 1
        if self.refused is not None:
            raise self.refused
        if thread in self.vanishing:
            raise ProcessLookupError
        self.masks[thread] = frozenset(cpus)

    def start(self, thread, parent=MAIN):
        self.masks[thread] = self.masks[parent]

    @property
    def told(self):
        return [sorted(mask) for mask in self.masks.values()]


def test_all_threads_with_the_main_threads_mask_move_and_return():
    threads = FakeThreads("0-3", "0-3", "2", "0-3")
    threads.vanishing = {99}
    affinity = Affinity(threads)
    affinity.bind(FIT, parse("1-2"))
    assert threads.told == [[1, 2], [1, 2], [2], [1, 2]]
    assert affinity.found == parse("0-3")
    affinity.let_go(FIT)
    affinity.let_go(FIT)
    assert threads.told == [[0, 1, 2, 3], [0, 1, 2, 3], [2], [0, 1, 2, 3]]
    assert affinity.found == parse("0-3")


def test_threads_born_meanwhile_are_restored_and_pinned_ones_stay():
    threads = FakeThreads("0-3", "1-2", "0-3")
    affinity = Affinity(threads)
    affinity.bind(FIT, parse("1-2"))
    threads.start(7)
    threads.set(3, parse("3"))
    affinity.let_go(FIT)
    assert threads.masks == {1: parse("0-3"), 2: parse("1-2"), 3: parse("3"), 7: parse("0-3")}


def test_the_first_mask_returns_with_the_last_fit_in_any_order():
    threads = FakeThreads("0-3", "0-3")
    affinity = Affinity(threads)
    affinity.bind(ONE, parse("0-1"))
    affinity.bind(OTHER, parse("0-2"))
    affinity.let_go(ONE)
    assert threads.told == [[0, 1, 2]] * 2
    affinity.let_go(OTHER)
    assert threads.told == [[0, 1, 2, 3]] * 2


def test_fits_that_want_nothing_in_common_stay_where_the_first_is():
    threads = FakeThreads("0-3")
    affinity = Affinity(threads)
    affinity.bind(ONE, parse("0-1"))
    affinity.bind(OTHER, parse("2-3"))
    assert threads.told == [[0, 1]]
    affinity.let_go(ONE)
    assert threads.told == [[2, 3]]


def test_a_mask_is_never_widened():
    threads = FakeThreads("0")
    affinity = Affinity(threads)
    affinity.bind(FIT, parse("0-7"))
    assert threads.told == [[0]]
    affinity.bind(FIT, parse("1"))
    assert threads.told == [[0]]


def test_threads_with_a_mask_of_the_program_keep_it():
    threads = FakeThreads("0-3", "0-3")
    affinity = Affinity(threads)
    affinity.bind(FIT, parse("1"))
    for thread in threads.masks:
        threads.set(thread, parse("2-3"))
    affinity.let_go(FIT)
    assert threads.told == [[2, 3]] * 2
    assert affinity.found == parse("2-3")


def test_a_system_that_refuses_changes_nothing_and_says_so():
    threads = FakeThreads("0-3", "0-3")
    affinity = Affinity(threads)
    threads.refused = PermissionError("no")
    with pytest.raises(PermissionError):
        affinity.bind(FIT, parse("1"))
    assert (threads.told, affinity.found) == ([[0, 1, 2, 3]] * 2, parse("0-3"))
    threads.refused = None
    affinity.bind(FIT, parse("1"))
    threads.refused = OSError("these CPUs are gone")
    affinity.let_go(FIT)
    assert threads.told == [[1]] * 2


@pytest.mark.parametrize("after", range(1, 5))
def test_an_interrupt_is_made_up_for_by_the_next_call(after):
    threads = FakeThreads("0-3", "0-3")
    set_mask = threads.set
    affinity = Affinity(threads)

    def interrupted(thread, cpus):
        if threads.moves == after - 1:
            threads.moves += 1
            raise KeyboardInterrupt
        set_mask(thread, cpus)

    threads.set = interrupted
    for call in (lambda: affinity.bind(FIT, parse("1")), lambda: affinity.let_go(FIT)):
        with suppress(KeyboardInterrupt):
            call()
    threads.set = set_mask
    affinity.let_go(FIT)
    assert (threads.told, affinity.found) == ([[0, 1, 2, 3]] * 2, parse("0-3"))


def test_a_finalizer_may_end_a_fit_in_the_midst_of_another():
    threads = FakeThreads("0-3", "0-3", "0-3")
    affinity = Affinity(threads)
    set_mask = threads.set
    affinity.bind(OLD, parse("0-1"))

    def collected(thread, cpus):
        threads.set = set_mask
        affinity.let_go(OLD)
        set_mask(thread, cpus)

    threads.set = collected
    affinity.bind(NEW, parse("1-2"))
    affinity.let_go(NEW)
    assert threads.told == [[0, 1, 2, 3]] * 3


def test_the_next_fit_makes_up_for_a_fit_that_was_freed():
    """An interrupt in its finalizer, for example."""
    threads = FakeThreads("0-3", "0-3")
    affinity = Affinity(threads)
    affinity.bind(Fit(), parse("0-1"))
    affinity.bind(FIT, parse("1-2"))
    assert threads.told == [[1, 2]] * 2
    affinity.let_go(FIT)
    assert threads.told == [[0, 1, 2, 3]] * 2


def test_a_system_without_masks_is_left_alone(monkeypatch):
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    affinity = Affinity(Threads())
    affinity.bind(FIT, parse("0"))
    affinity.let_go(FIT)
    assert (affinity.found, affinity.now) == (None, [])


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no masks")
def test_a_child_is_part_of_no_fit_and_keeps_its_mask():
    affinity = Affinity(Threads())
    affinity.bind(FIT, parse("0"))
    child = os.fork()
    if child == 0:
        affinity.let_go(FIT)
        os._exit(0 if affinity.found == os.sched_getaffinity(0) == {0} else 1)
    assert os.waitpid(child, 0)[1] == 0
    affinity.let_go(FIT)
