"""What is changed is put back as found."""

import itertools

import pytest
from rows import each_row

from perf_callbacks.kernel.process.patches import Patches


class Base:
    def method(self):
        return ["method"]


class Derived(Base):
    pass


def wrapped(inner):
    return lambda: [*inner(), "wrapped"]


def test_a_method_of_the_class_is_found_again_where_it_was():
    owner, patches = Derived(), Patches()
    patches.replace(owner, "method", wrapped)
    assert owner.method() == ["method", "wrapped"]
    patches.restore()
    assert (vars(owner), owner.method()) == ({}, ["method"])


def test_a_replacement_on_the_object_is_found_again_as_it_was():
    owner, patches = Base(), Patches()
    owner.method = own = lambda: ["own"]
    patches.replace(owner, "method", wrapped)
    assert owner.method() == ["own", "wrapped"]
    patches.restore()
    assert vars(owner) == {"method": own}


def test_changes_on_changes_are_undone_last_first():
    owner, patches = Base(), Patches()
    for _ in range(3):
        patches.replace(owner, "method", wrapped)
    assert owner.method() == ["method", *["wrapped"] * 3]
    patches.restore()
    assert vars(owner) == {}


@each_row("order", [*itertools.permutations(range(3))])
def test_fits_that_overlap_leave_all_as_found_in_any_order(order):
    for owner in (Base(), Base):
        before, fits = {**vars(owner)}, [Patches() for _ in range(3)]
        for patches in fits:
            patches.replace(owner, "method", lambda inner: lambda *self: [*inner(*self), "wrapped"])
        for place, ends in enumerate(order, 1):
            fits[ends].restore()
            assert Base.method(Base())[0] == "method"
            assert (vars(owner) != before) == (place < len(order))


def test_a_change_of_the_program_on_top_of_ours_stays():
    owner, patches = Base(), Patches()
    patches.replace(owner, "method", wrapped)
    owner.method = theirs = wrapped(owner.method)
    patches.restore()
    assert vars(owner) == {"method": theirs}
    assert owner.method() == ["method", "wrapped", "wrapped"]


def test_a_method_that_the_program_took_away_stays_away():
    owner, patches = Base(), Patches()
    patches.replace(owner, "method", wrapped)
    del owner.method
    patches.restore()
    assert vars(owner) == {}


@pytest.mark.parametrize("found", [{}, {"step": None}])
def test_an_owner_without_such_a_name_is_left_alone(found):
    owner, patches = Base(), Patches()
    vars(owner).update(found)
    patches.replace(owner, "step", wrapped)
    patches.restore()
    assert vars(owner) == found


def test_a_failed_undo_keeps_no_other_from_it():
    owner, patches, undone = Base(), Patches(), []
    patches.add(lambda: undone.append("first"))
    patches.replace(owner, "method", wrapped)
    patches.add(lambda: 1 / 0, [].pop, lambda: undone.append("last"))
    with pytest.raises(IndexError):  # the first of the errors
        patches.restore()
    patches.restore()  # once is enough
    assert (undone, vars(owner)) == (["last", "first"], {})


@pytest.mark.parametrize("failure", [ValueError(), None])
def test_an_interrupt_keeps_no_undo_from_it(failure):
    undone, patches = [], Patches()

    def fail(error):
        if error is not None:
            raise error

    patches.add(lambda: undone.append(1), lambda: fail(KeyboardInterrupt()), lambda: undone.append(2))
    patches.add(lambda: fail(failure))
    with pytest.raises(KeyboardInterrupt):
        patches.restore()
    assert undone == [2, 1]
