"""However a fit ends, and whatever fails in the callback: training goes on unchanged, and the world is as it was."""

import functools
import itertools
import signal

import pytest
from counted import counts, left_behind
from faults import ERRORS, Fault, break_clock, ended, faults, shared, warnings
from forked import run
from jobs import IMPORTS
from sampling import crossed, half_slow, of_the_day, sampled
from trainings.doors import INTEGRATIONS
from trainings.lightning_trainer import LightningTraining
from trainings.runs import records, steps
from trainings.training import collect

from perf_callbacks.kernel.failures import describe
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
    interrupted = isinstance(training, LightningTraining) and isinstance(error, KeyboardInterrupt)
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


@pytest.mark.parametrize("switch", ["1", "0"])
@pytest.mark.parametrize("integration", INTEGRATIONS)
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
    """The places between the begin and the end of a step that the callback counts."""
    over = {"lr_scheduler_step", "zero_grad in manual optimization"}
    stages = {"forward", "backward", "optimizer"}
    return [name for name in leaving(kind) if kind.PLACES[name].stage in stages and name not in over]


@pytest.mark.parametrize(("kind", "place", "way", "error"), half_slow(in_turn(counting)))
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


FAULTS = {
    "transformers": faults(
        often={
            "kernel.engine.ledger.Ledger": "take_row",
            "kernel.engine.ratios": "metrics",
            "integrations.methods": "stages spans exits",
        },
        twice={
            "integrations.transformers.callback": "find_trainer move_to_front",
            "integrations.transformers.watch.TransformersWatch": "_carry",
        },
        once={
            "kernel.engine.engine.Engine": "whole",
            "integrations.methods": "batches",
            "integrations.transformers.callback": "_place",
            "integrations.transformers.watch": "_overrides _outermost",
            "integrations.transformers.watch.TransformersWatch": "install _end_steps",
        },
        turn=1,
    ),
    "lightning": faults(
        often={
            "kernel.engine.ledger.Ledger": "take_row",
            "kernel.engine.ratios": "metrics",
            "integrations.methods": "stages exits",
            "kernel.process.patches.Patches": "method",
            "integrations.lightning.hooks.LightningHooks": "log_row",
            "integrations.lightning.watch.TrainerWatch": "_end_batch",
        },
        twice={"integrations.methods": "spans", "integrations.lightning.hooks": "steps_done measures"},
        once={
            "integrations.methods": "turns",
            "integrations.lightning.hooks": "_FitStarter CallbackListCopy TrainerWatch",
            "integrations.lightning.watch": "_closure_is_enclosed",
            "integrations.lightning.hooks.LightningHooks": "_place _last_state",
            "integrations.lightning.watch.TrainerWatch": "install _training_step _settle",
        },
        turn=0,
    ),
    "accelerate": faults(
        often={
            "integrations.methods": "stages",
            "integrations.accelerate.prepared.PreparedObjects": "see",
            "integrations.accelerate.watch.AcceleratedWatch": "add evaluate",
        },
        twice={
            "integrations.saved_counters": "write read",
            "integrations.accelerate.accelerator_session": "_place",
            "integrations.accelerate.watch.AcceleratedWatch": "install _watch_accelerator _end_evaluation",
        },
        once={
            "integrations.accelerate.attachment": "install",
            "integrations.accelerate.accelerator_session": "AcceleratedWatch",
            "integrations.accelerate.prepared": "_measured",
        },
        turn=2,
    ),
    "loop": faults(often={}, twice={}, once={}, turn=1),
}
STOPPING = {"lightning": StopIteration}
"""The error of a fault, where a trainer takes one for its own."""


def faulty_parts():
    """Each part once: a shared one in the integrations in turn. As slow tests, the day's of a shared part elsewhere."""
    turns = dict(zip(shared(), itertools.cycle(FAULTS), strict=False))
    quick, slow = [], []
    for integration, several in FAULTS.items():
        for part, first in (fault.values for fault in several):
            pairs, marks = (quick, []) if turns.get(part, integration) == integration else (slow, [pytest.mark.slow])
            pairs.append(pytest.param(integration, part, first, id=f"{integration}-{part}-{first}", marks=marks))
    return quick + of_the_day(slow)


@pytest.mark.parametrize(("integration", "part", "first"), faulty_parts())
def test_a_fault_costs_one_warning_and_nothing_else(  # noqa: PLR0917 crossed
    tmp_path, monkeypatch, caplog, undisturbed, integration, part, first
):
    outcome = undisturbed(integration)
    with monkeypatch.context() as patch:
        fault = Fault(patch, part, first, STOPPING.get(integration, RuntimeError))
        assert_unchanged(tmp_path, integration, outcome)
    assert fault.happened
    assert ["a bug of ours" in text for text in warnings(caplog)] == [True]


@pytest.mark.parametrize(("reading", "integration"), crossed([*range(16), 21, 34, 55], [*INTEGRATIONS]))
def test_a_clock_that_fails_costs_one_warning_and_nothing_else(  # noqa: PLR0917 crossed
    tmp_path, monkeypatch, caplog, undisturbed, reading, integration
):
    outcome = undisturbed(integration)
    break_clock(monkeypatch, reading, STOPPING.get(integration, RuntimeError))
    assert_unchanged(tmp_path, integration, outcome)
    counting = any(record.errors for path in tmp_path.rglob("perf_callbacks") for record in counts(path.parent))
    assert ["a bug of ours" in text for text in warnings(caplog)] == [True] * (not counting)  # a count tells its own


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
