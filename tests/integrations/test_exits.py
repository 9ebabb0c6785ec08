"""However a fit ends, and whatever fails in the callback: training goes on unchanged, and the world is as it was."""

import functools
import logging
import random
import signal
import sys
import time

import pytest
from accelerate.state import AcceleratorState, GradientState, PartialState
from counted import counts, left_behind
from faults import ERRORS, BugError, Points, ended, innermost_guard, profiled, warnings
from jobs import IMPORTS, run
from sampling import DAY, half_slow, of_the_day, sampled
from trainings.doors import DOORS, INTEGRATIONS
from trainings.runs import records, steps
from trainings.training import collect

from perf_callbacks.kernel.failures import describe
from perf_callbacks.kernel.fit.recorder import Recorder
from perf_callbacks.kernel.records.fit_records import Summary

pytestmark = [
    pytest.mark.usefixtures("accelerate_state"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore:Detected KeyboardInterrupt"),
]

COUNTED = 2
"""The step whose FLOPs the callback counts."""


@pytest.fixture(autouse=True)
def _interruptible():
    """After one interrupt, Lightning ignores the next."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


class Raise:
    """Raise an error at a place, from some step on; at once where the loop comes to the place only before it."""

    def __init__(self, error, step=3):
        self.error, self.step = error, step

    def __call__(self, *_args, **_kwargs):
        if self.step is not None and self.training.step >= self.step:
            raise self.error


def fit(directory, kind, place, error, step=3, **options):
    """A training that raises at a place."""
    early = kind.PLACES[place].when.startswith("before")
    act = Raise(error, 0 if early else step)
    act.training = kind(directory, place, act, **kind.EVERYWHERE | {"after_step": collect} | options)
    return act.training, act


def leaving(kind):
    """The places that an error leaves; Python only prints an error in a collection."""
    unseen = getattr(kind, "UNSEEN", ())
    return [name for name, place in kind.PLACES.items() if place.stage != "gc" and name not in unseen]


def raised(training, error):
    """The class of the error that leaves the training."""
    if getattr(training, "loud", False):
        return ValueError
    interrupted = isinstance(training, DOORS["lightning"]) and isinstance(error, KeyboardInterrupt)
    return SystemExit if interrupted else type(error)


def failure(training, error):
    """The failure that the summary has."""
    over = {"after the fit"} | ({"at its end"} if getattr(training, "order", None) == "after ours" else set())
    if training.PLACES[training.place].when in over:
        return None
    taken_over = "another attach(accelerator) took over"
    return {"close": None, "another attach": taken_over}.get(getattr(training, "way", ""), describe(error))


def in_turn(places):
    """Places of all integrations; the ways to train and the errors take turns."""
    return [
        pytest.param(kind, *case.values, id=f"{integration}-{case.id}")
        for integration, kind in INTEGRATIONS.items()
        for case in sampled(places(kind), kind.WAYS, ERRORS)
    ]


@pytest.mark.parametrize(("kind", "place", "way", "error"), half_slow(in_turn(leaving)))
def test_an_error_leaves_the_world_as_it_was(tmp_path, kind, place, way, error):
    training, act = fit(tmp_path, kind, place, error, **way)
    with pytest.raises(raised(training, error)) as caught:
        training.run()
    assert caught.value is error or raised(training, error) is not type(error)
    assert training.world() == training.before

    journals = [path.parents[1] for path in tmp_path.rglob("rank0.jsonl")]
    assert bool(journals) == (kind.PLACES[place].when != "before the fit")
    for journal in journals:
        assert ended(journal) == training.summary
        assert training.summary.failure == failure(training, error)

    act.step = None
    again = training.again()
    again.run()
    assert again.world() == again.before
    assert (again.summary.step, again.summary.failure) == (again.steps, None)


class Unnamed(type):
    """A kind of class that doesn't tell its name."""

    @property
    def __name__(cls):
        raise AttributeError


class Hostile(Exception, metaclass=Unnamed):  # noqa: N818 its name stands for the message that it lacks
    """An error whose own methods fail with `failure`, as where a class forgets to set an attribute."""

    def __init__(self, failure):
        super().__init__()
        self.failure = failure

    def __str__(self):
        raise self.failure

    __repr__ = __bool__ = __str__
    __class__ = property(__str__)


HOSTILE = (AttributeError("detail"), KeyboardInterrupt(), SystemExit(3))
FORWARD = {"transformers": "compute_loss", "lightning": "training_step", "accelerate": "the loss", "loop": "the loss"}


@pytest.mark.parametrize(("integration", "switch"), [*zip(INTEGRATIONS, "1111", strict=True), ("loop", "0")])
def test_an_error_without_a_message_reaches_the_program(tmp_path, monkeypatch, integration, switch):
    monkeypatch.setenv("PERF_CALLBACKS", switch)
    for number, wrong in enumerate(HOSTILE):
        error, same = Hostile(wrong), False
        training, _ = fit(tmp_path / str(number), INTEGRATIONS[integration], FORWARD[integration], error)
        try:
            training.run()
        except BaseException as caught:  # noqa: BLE001 pytest's own `raises` can't show such an error
            same = caught is error
        assert same
        assert training.world() == training.before
        assert switch == "0" or ended(tmp_path / str(number)).failure == "Hostile"


def counting(kind):
    """The places of the day between the begin and the end of a step that the callback counts; all of a plain loop."""
    over = {"lr_scheduler_step", "zero_grad in manual optimization"}
    stages = {"forward", "backward", "optimizer"}
    places = [name for name in leaving(kind) if kind.PLACES[name].stage in stages and name not in over]
    return places if kind is DOORS["loop"] else of_the_day(places)


@pytest.mark.parametrize(("kind", "place", "way", "error"), in_turn(counting))
def test_an_error_in_the_counted_step_leaves_no_count(tmp_path, kind, place, way, error):
    before = left_behind()
    training, act = fit(tmp_path, kind, place, error, COUNTED, evaluate=None, save=None, **way)
    with pytest.raises(raised(training, error)):
        training.run()
    assert {**left_behind(), "filters": None} == {**before, "filters": None}  # Lightning adds filters of its own
    assert (counts(tmp_path), ended(tmp_path).steps) == ([], COUNTED - 1)
    act.step = None
    training.again().run()
    assert counts(tmp_path)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The outcome of a training without the callback."""

    @functools.cache
    def outcome(integration):
        kind, directory = INTEGRATIONS[integration], tmp_path_factory.mktemp(integration)
        return kind(directory, measured=False, after_step=collect, **kind.EVERYWHERE).run().outcome

    return outcome


OPTIONS = {"accelerate": {"prepared": "inside", "way": "end_training"}}
"""A loop that attaches first, and prepares then."""


def assert_unchanged(directory, integration, outcome):
    """Train with the callback: the outcome is the same to the last bit, and the world is as it was."""
    kind = INTEGRATIONS[integration]
    training = kind(directory, after_step=collect, **kind.EVERYWHERE | OPTIONS.get(integration, {}))
    training.run()
    assert training.outcome == outcome
    assert training.world() == training.before
    return training


@pytest.mark.parametrize("integration", INTEGRATIONS)
def test_measuring_changes_no_bit_of_a_training(tmp_path, caplog, undisturbed, integration):
    training = assert_unchanged(tmp_path, integration, undisturbed(integration))
    assert training.summary.step == training.steps
    assert warnings(caplog) == []


def trained(directory, integration, profiler=None):
    """A training with the callback. The profiler looks on, or raises."""
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    kind = INTEGRATIONS[integration]
    training = kind(directory, after_step=collect, **kind.EVERYWHERE | OPTIONS.get(integration, {}))
    profiled(profiler, training.run)
    return training


def harm(directory, integration, outcome, fault, caplog):
    """Train with a fault: a list of the laws that it broke."""
    caplog.clear()
    training = trained(directory, integration, fault if isinstance(fault, Points) else None)
    journal = "".join(path.read_text() for path in directory.rglob("rank0.jsonl"))
    told = "a bug of ours" in caplog.text or BugError.__name__ in journal
    laws = {
        "outcome": training.outcome == outcome,
        "world": training.world() == training.before,
        "a report": told or fault.silent or not fault.happened,
        "no second warning": len(warnings(caplog)) <= 1,
    }
    return [(str(fault), law) for law, holds in laws.items() if not holds]


OUTSIDE = {"transformers": 120, "lightning": 110, "accelerate": 195, "loop": 190}
"""Most points outside of a guard, such as the checks of arguments. Points of a guard that is gone would be more."""


@pytest.mark.parametrize("integration", INTEGRATIONS)
def test_a_fault_at_any_line_costs_a_report_and_nothing_else(tmp_path, caplog, undisturbed, integration):
    caplog.set_level(logging.DEBUG, "perf_callbacks")
    outcome, points, bad = undisturbed(integration), Points(), []
    trained(tmp_path / "counted", integration, points)
    assert len([point for point in points.passed if not points.guarded[point]]) <= OUTSIDE[integration]
    faults = [*points.draw(integration, 4), *points.draw(integration + DAY, 8)]
    for number, fault in enumerate(faults):
        bad += harm(tmp_path / str(number), integration, outcome, fault, caplog)
    assert bad == []
    assert any(fault.happened for fault in faults)


class Clock:
    """Counts its readings, and raises in one."""

    def __init__(self, reading=None):
        self.reading, self.readings, self.silent = reading, 0, False

    def __str__(self):
        return f"reading {self.reading}"

    def __call__(self):
        self.readings += 1
        if self.readings == self.reading:
            self.silent = innermost_guard(sys._getframe(1), "c_call") == "silent"
            raise BugError("a bug of ours in the clock")
        return time.perf_counter()

    @property
    def happened(self):
        return self.reading is not None and self.readings >= self.reading


def use(monkeypatch, clock):
    """The clock of the next recorder, from the end of its constructor on."""

    class Timed(Recorder):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.clock = clock

    monkeypatch.setattr("perf_callbacks.session.Recorder", Timed)


@pytest.mark.parametrize("integration", INTEGRATIONS)
def test_a_failing_clock_costs_a_report_and_nothing_else(tmp_path, monkeypatch, caplog, undisturbed, integration):
    caplog.set_level(logging.DEBUG, "perf_callbacks")
    outcome, counting, bad = undisturbed(integration), Clock(), []
    use(monkeypatch, counting)
    trained(tmp_path / "counted", integration)
    readings = [random.Random(seed) for seed in (integration, integration + DAY)]
    for number in range(8):
        clock = Clock(1 + readings[number % 2].randrange(counting.readings))
        use(monkeypatch, clock)
        bad += harm(tmp_path / str(number), integration, outcome, clock, caplog)
    assert bad == []


UNFINISHED = """
import torch
from accelerate import Accelerator
from perf_callbacks import PerfConfig
from perf_callbacks.accelerate import attach
from perf_callbacks.loop import measure

def parts():
    model = torch.nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters()), torch.utils.data.DataLoader(torch.ones(2, 4), batch_size=2)

accelerator = Accelerator(cpu=True)
attach(accelerator, PerfConfig(output_dir="accelerate"))
prepared, its_optimizer, its_loader = accelerator.prepare(*parts())
for inputs in its_loader:
    accelerator.backward(prepared(inputs).mean())
    its_optimizer.step()

model, optimizer, loader = parts()
config = PerfConfig(output_dir="loop")
perf = measure(model=model, optimizer=optimizer, loader=loader, config=config).__enter__()
for inputs in perf.loader:
    model(inputs).mean().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_loops_that_never_end_are_closed_with_the_interpreter(tmp_path):
    (program := tmp_path / "train.py").write_text(UNFINISHED)
    status, _, errors = run(program, imports=IMPORTS["loop"], directory=tmp_path)
    assert (status, errors) == (0, "")
    for integration in ("accelerate", "loop"):
        assert len(steps(tmp_path / integration)) == 1
        (summary,) = records(tmp_path / integration, Summary)
        assert (summary.steps, summary.failure) == (1, "the interpreter exited")
