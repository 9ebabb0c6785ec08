"""The collector, changed on behalf of fits, and put back exactly as it was found."""

import gc
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from collector import FakeGc, put

import perf_callbacks
from perf_callbacks.host import custody
from perf_callbacks.host.custody import Custody

SOURCE = Path(perf_callbacks.__file__).parents[1]


@pytest.fixture
def fake(monkeypatch):
    return put(monkeypatch, FakeGc())


@pytest.fixture
def ours(fake):
    ours = Custody()
    ours._heard_of_forks = True
    return ours


def test_what_was_turned_off_and_frozen_is_as_found_when_it_is_let_go(fake, ours):
    found = fake.state
    assert ours.take("a")
    assert ours.turn_off("a")
    ours.freeze("a")
    assert fake.state[:2] == (False, True)
    assert (ours.automatic, ours.frozen) == (True, 0)
    ours.let_go("a")
    ours.let_go("a")
    assert fake.state == found


def test_collection_that_somebody_else_turned_off_stays_off(fake, ours):
    fake.disable()
    ours.take("a")
    assert not ours.turn_off("a")
    ours.turn_on("a")
    ours.let_go("a")
    assert not fake.enabled


def test_what_somebody_else_froze_stays_frozen(fake, ours):
    fake.freeze()
    ours.take("a")
    ours.freeze("a")
    fake.alive = 10
    ours.let_go("a")
    assert fake.frozen == 5000


def test_what_an_interpreter_froze_for_itself_is_nobodys_plan(fake, ours):
    fake.frozen = 400
    ours.take("a")
    ours.freeze("a")
    assert fake.frozen == 5400
    ours.let_go("a")
    assert fake.frozen == 0


def test_what_somebody_froze_on_top_is_left_to_them(fake, ours):
    ours.take("a")
    ours.freeze("a")
    fake.alive = 3000
    fake.freeze()
    ours.let_go("a")
    assert fake.frozen == 8000


def test_who_comes_later_takes_over_and_who_had_it_before_may_take_it_back(fake, ours):
    ours.take("a")
    ours.turn_off("a")
    ours.freeze("a")
    assert ours.take("b")
    assert fake.state[:2] == (True, False)  # until it says what it wants
    ours.turn_off("b")
    ours.turn_on("a")
    ours.let_go("a")
    assert (fake.enabled, ours.held_by("a"), ours.held_by("b")) == (False, False, True)
    ours.let_go("b")
    assert fake.enabled
    assert ours.take("a")
    assert ours.turn_off("a")
    ours.let_go("a")
    assert fake.enabled


def test_a_fit_of_another_thread_keeps_it_until_that_thread_ends(fake, ours):
    through, held = threading.Event(), threading.Event()

    def fit():
        ours.take("a")
        ours.turn_off("a")
        held.set()
        through.wait(10)

    thread = threading.Thread(target=fit)
    thread.start()
    assert held.wait(10)
    assert not ours.take("b")
    assert not ours.turn_off("b")
    assert not fake.enabled
    through.set()
    thread.join(10)
    assert ours.take("b")
    assert fake.enabled


def test_it_is_noticed_when_somebody_turns_collection_on(fake, ours):
    ours.take("a")
    ours.turn_off("a")
    assert not ours.overruled("a")
    fake.enable()
    assert ours.overruled("a")
    assert not ours.overruled("b")
    ours.turn_on("a")
    assert not ours.overruled("a")


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.timeout(30)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked on this system")
def test_a_forked_child_collects_by_itself_and_is_part_of_no_fit():
    ours = Custody()
    ours.take("a")
    assert ours.turn_off("a")
    try:
        child = os.fork()
        if child == 0:
            os._exit(0 if gc.isenabled() and not ours.held_by("a") and ours.take("b") else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert not gc.isenabled()
    finally:
        ours.let_go("a")
    assert gc.isenabled()


EXITS = """
    import atexit, gc, weakref
    atexit.register(lambda: print(gc.isenabled(), gc.get_freeze_count() < 1000))
    from perf_callbacks.host.custody import CUSTODY
    class Fit: pass
    fit, holder = Fit(), object()
    weakref.finalize(fit, CUSTODY.let_go, holder)
    CUSTODY.take(holder)
    assert CUSTODY.turn_off(holder) and not gc.isenabled()
    CUSTODY.freeze(holder)
    assert gc.get_freeze_count() >= 1000
"""


def test_at_interpreter_exit_everything_is_as_it_was_found():
    command = [sys.executable, "-c", textwrap.dedent(EXITS)]
    environ = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("True True\n", "")


def test_there_is_one_for_the_process_and_nobody_has_it():
    assert custody.CUSTODY.take("a")
    custody.CUSTODY.let_go("a")
    assert (custody.CUSTODY.held_by("a"), custody.CUSTODY.automatic) == (False, gc.isenabled())
