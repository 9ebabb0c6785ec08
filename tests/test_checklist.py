"""The checklist of a fit: each item by itself, all of them told, and undone."""

import logging
from types import SimpleNamespace

import pytest
import torch
from collector import FakeGc, put
from fakes import FakeClock

from perf_callbacks import PerfConfig, checklist
from perf_callbacks.checklist import Startup
from perf_callbacks.kernel.engine.account import Account
from perf_callbacks.kernel.engine.marks import BACK, BEGIN
from perf_callbacks.kernel.engine.observer import Observers
from perf_callbacks.kernel.engine.stages import Stage
from perf_callbacks.kernel.engine.steps import NEVER
from perf_callbacks.kernel.fit import environment
from perf_callbacks.kernel.fit.item import Fit
from perf_callbacks.kernel.process.patches import Patches
from perf_callbacks.kernel.records.fit_records import Checklist
from perf_callbacks.kernel.settings.config import ITEMS
from perf_callbacks.kernel.settings.resolution import resolve


class Upkeep:
    """Keeps in mind what it is told."""

    def __init__(self, due, failing=""):
        self.due, self.told, self.failing = due, [], failing

    def tell(self, *what):
        self.told.append(what)
        if self.failing == what[0]:
            raise ValueError("no")

    def step_ended(self, step):
        self.tell("step_ended", step)

    def span_began(self, kind, step):
        self.tell("span_began", kind, step)

    def span_ended(self):
        self.tell("span_ended")

    @property
    def proposals(self):
        return {}

    def adopted(self, asked, step):
        self.tell("adopted", asked, step)

    def news(self):
        return []

    def closed(self):
        self.told.append(("closed",))


class Item:
    def __init__(self, slug, *, status="applied", due=5, failing=""):
        self.slug, self.status, self.failing = slug, status, failing
        self.upkeep = Upkeep(due, failing)

    def decide(self, environment, config):
        if self.failing == "decide":
            raise ValueError("no")
        return Checklist(item=self.slug, status=self.status, before="so")

    def apply(self, fit):
        if self.failing == "apply":
            raise ValueError("no")
        return self.upkeep


def fit(**config):
    return Fit(config=PerfConfig(**config), environment=environment.read(), step=0, memory=dict)


def test_items_to_be_applied_are_and_all_are_told():
    one, other = Item("one", due=7), Item("other", status="already so", due=3)
    rows = []
    checklist = Startup(fit(), (one, other), write=rows.append)
    checklist.announce()
    assert [(row.item, row.status) for row in rows] == [("one", "applied"), ("other", "already so")]
    assert checklist.due == 7
    checklist.span_began("evaluation", 6)
    checklist.span_ended()
    checklist.step_ended(7)
    checklist.closed()
    checklist.closed()
    assert one.upkeep.told == [("span_began", "evaluation", 6), ("span_ended",), ("step_ended", 7), ("closed",)]
    assert (other.upkeep.told, checklist.due) == ([], NEVER)


@pytest.mark.parametrize("point", ["decide", "apply", "adopted", "step_ended", "span_began", "span_ended"])
def test_an_item_that_fails_says_so_and_is_undone_and_the_others_go_on(point, caplog):
    one, other = Item("one", failing=point, due=2), Item("other", due=9)
    rows = []
    checklist = Startup(fit(), (one, other), write=rows.append)
    checklist.announce()
    checklist.adopted({"less": 1}, 2)
    checklist.span_began("evaluation", 1)
    checklist.span_ended()
    checklist.step_ended(2)
    checklist.step_ended(9)
    failed = [row for row in rows if row.status == "failed"]
    assert failed == [Checklist(item="one", status="failed", why="ValueError: no")]
    assert one.upkeep.told[-1:] == ([("closed",)] if point not in {"decide", "apply"} else [])
    assert [what for what, *_ in other.upkeep.told] == [
        "adopted",
        "span_began",
        "span_ended",
        *["step_ended"] * 2,
    ]
    assert checklist.due == 9
    checklist.closed()
    assert other.upkeep.told[-1] == ("closed",)


def test_an_item_to_be_skipped_is():
    one, other = Item("gc"), Item("other")
    checklist = Startup(fit(skip="gc , loaders"), (one, other))
    assert checklist.rows[0] == Checklist(item="gc", status="skipped", before="so", why="skip names gc")
    assert checklist.rows[1].status == "applied"


def test_an_item_that_was_applied_earlier_is_undone_with_the_rest():
    one, other = Item("one", due=7), Item("other", due=9)
    earlier = Startup(fit(), (other,))
    rows = []
    checklist = Startup(fit(), (one, other), earlier, write=rows.append)
    checklist.announce()
    earlier.closed()
    assert [row.item for row in rows] == ["one", "other"]
    assert (other.upkeep.told, checklist.due) == ([], 7)
    checklist.closed()
    assert (one.upkeep.told, other.upkeep.told) == ([("closed",)], [("closed",)])


def test_the_settings_know_every_item():
    assert [item.slug for item in checklist.ITEMS] == [*ITEMS]


def a_recorder(*, active=True):
    journal = []

    class Recorder:
        run, patches, observers, marks = SimpleNamespace(step=0), Patches(), Observers(), []
        clock, engine = FakeClock(), SimpleNamespace(account=Account())
        progress_of, write = staticmethod(lambda: (0, 0.0)), journal.append

        def observe(self, observer):
            self.patches.add(observer.closed)
            self.observers.add(observer)

        def enter(self, mark):
            self.marks.append(mark)

    recorder = Recorder()
    recorder.active = active
    return recorder, journal


CPU = torch.device("cpu")


def test_a_fit_that_is_measured_has_its_checklist_until_it_closes(monkeypatch):
    fake = put(monkeypatch, FakeGc())
    recorder, journal = a_recorder()
    rows = checklist.start(recorder, resolve(PerfConfig(), {}), CPU)
    assert journal == list(rows)
    assert [row.item for row in rows] == ["gc", "loaders", "affinity"]
    assert recorder.observers.due == 2
    recorder.observers.step_ended(2)
    recorder.observers.step_began()
    assert (fake.automatic, recorder.observers.due) == (False, 3)
    assert recorder.marks == []
    recorder.observers.step_ended(1000)
    assert recorder.marks == [BEGIN[Stage.ASIDE], BACK]
    recorder.patches.restore()
    assert fake.automatic


@pytest.mark.parametrize(("active", "config"), [(False, {}), (True, {"checklist": "off"})])
def test_without_a_checklist_nothing_is_done(active, config):
    recorder, journal = a_recorder(active=active)
    assert checklist.start(recorder, resolve(PerfConfig(**config), {}), CPU) == ()
    assert (journal, recorder.observers.due) == ([], NEVER)


def test_a_fit_without_facts_is_measured_without_a_checklist(monkeypatch, caplog):
    def read(**_):
        raise OSError("no such machine")

    monkeypatch.setattr(environment, "read", read)
    recorder, journal = a_recorder()
    assert checklist.start(recorder, resolve(PerfConfig(), {}), CPU) == ()
    assert (journal, caplog.records[0].levelno) == ([], logging.WARNING)
    assert "no checklist, measuring goes on: OSError: no such machine." in caplog.text


def test_an_error_after_the_items_were_applied_does_not_hide_their_rows(monkeypatch, caplog):
    recorder, _ = a_recorder()
    monkeypatch.setattr(recorder, "write", {}.__getitem__)
    with pytest.raises(KeyError):  # it ends the fit, which undoes the items
        checklist.start(recorder, resolve(PerfConfig(), {}), CPU)
    assert "no checklist" not in caplog.text
