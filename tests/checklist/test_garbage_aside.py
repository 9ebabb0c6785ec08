"""What a trial of garbage collection does for its own sake is part of no step."""

from contextlib import contextmanager

from collector import FakeGc, put

from perf_callbacks import PerfConfig
from perf_callbacks.checklist import garbage
from perf_callbacks.checklist.garbage import Collecting
from perf_callbacks.checklist.item import Fit
from perf_callbacks.host import environment


def test_beginning_and_going_back_are_part_of_no_step_what_is_collected_for_a_turn_is(monkeypatch):
    fake, told = put(monkeypatch, FakeGc()), []
    collect, pass_over = fake.collect, garbage.CUSTODY.pass_over

    @contextmanager
    def aside():
        told.append("aside")
        yield
        told.append("back")

    monkeypatch.setattr(fake, "collect", lambda *of: told.append("collected") or collect(*of))
    monkeypatch.setattr(garbage.CUSTODY, "pass_over", lambda *of: told.append("passed over") or pass_over(*of))
    fit = Fit(config=PerfConfig(), environment=environment.read(), step=0, memory=dict, aside=aside)
    item = Collecting(fit)
    item.hold()
    for step, done in enumerate([False, True, True, False, False], 1):
        item.turn(step, done=done)
    item.close()
    begun = ["aside", "collected", "back"]
    assert told == [*begun, "collected", "collected", "aside", "passed over", "back"]
    assert fake.isenabled()
