"""Programs armed from outside: each trainer and each accelerator gets one callback, and an explicit one wins."""

import pickle
import sys
import weakref

import pytest
import transformers.trainer
from accelerate import Accelerator, accelerator as accelerate_module
from torch import nn
from trainings import accelerated, lightning_kit, models, runs
from transformers import DefaultFlowCallback, Trainer, TrainerCallback
from transformers.trainer_callback import CallbackHandler

from perf_callbacks import PerfConfig
from perf_callbacks.accelerate import attach
from perf_callbacks.integrations.accelerate.accelerator_methods import ATTRIBUTE
from perf_callbacks.integrations.transformers.callback import ArmedCallback
from perf_callbacks.kernel.records.fit_records import Run, Summary
from perf_callbacks.launch import autoload
from perf_callbacks.transformers import PerfCallback

FACTORIES = {"lightning": autoload.lightning_callbacks, "pytorch_lightning": autoload.pytorch_lightning_callbacks}


@pytest.fixture(autouse=True)
def _armed(monkeypatch):
    """Arm this process, and disarm it again."""
    for event in ("on_init_end", "on_train_begin"):
        monkeypatch.setattr(CallbackHandler, event, getattr(CallbackHandler, event))
    monkeypatch.setattr(Accelerator, "__init__", Accelerator.__init__)
    monkeypatch.setattr(autoload, "_complaints", set())
    monkeypatch.setenv("PERF_CALLBACKS", "1")
    for module in (transformers.trainer, accelerate_module):
        autoload.ACTIONS[module.__name__](module)


@pytest.fixture
def said(caplog):
    return lambda: [record.getMessage() for record in caplog.records if record.name == "perf_callbacks"]


def attached(accelerator):
    return getattr(type(accelerator), ATTRIBUTE, None)


def armed(trainer):
    callbacks = trainer.callback_handler.callbacks if isinstance(trainer, Trainer) else trainer.callbacks
    return [callback for callback in callbacks if getattr(callback, "armed", False)]


class Reporter(TrainerCallback):
    pass


def test_a_trainer_gets_one_callback_before_others_its_accelerator_none(tmp_path, said):
    trainer = models.trainer(models.training_arguments(tmp_path, max_steps=3), Reporter())
    assert [type(one) for one in trainer.callback_handler.callbacks].index(ArmedCallback) == 0
    trainer.train()
    assert attached(trainer.accelerator) is None
    assert (len(runs.records(tmp_path, Run)), armed(trainer)[0].summary.steps, said()) == (1, 3, [])
    assert "perf/step_time" in trainer.state.log_history[2]


class Replacing(Trainer):
    """Replaces its callbacks after the constructor of `Trainer`."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.callback_handler.callbacks = [DefaultFlowCallback()]


class Handling(Trainer):
    """Makes a handler of its own."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.callback_handler = CallbackHandler([DefaultFlowCallback()], self.model, None, None, None)


@pytest.mark.parametrize("kind", [Trainer, Replacing, Handling])
@pytest.mark.parametrize("explicit", [False, True])
def test_a_trainer_of_other_default_callbacks_gets_one_callback(tmp_path, monkeypatch, kind, explicit):
    monkeypatch.setattr(transformers.trainer, "DEFAULT_CALLBACKS", [DefaultFlowCallback])
    trainer = models.trainer(models.training_arguments(tmp_path, max_steps=3), kind=kind)
    ours = PerfCallback()
    if explicit:
        trainer.add_callback(ours)
    for attempt in range(2):
        trainer.train()
        measuring, *others = [ours] * explicit + armed(trainer)
        assert (measuring.summary.steps, [one.summary for one in others]) == (3, [None] * explicit)
        assert runs.records(tmp_path, Summary, attempt=attempt)[0].steps == 3


@pytest.mark.parametrize("later", [False, True], ids=["at once", "added later"])
def test_an_explicit_callback_wins_without_a_word(tmp_path, said, later):
    explicit = PerfCallback(PerfConfig(gc="observe"))
    trainer = models.trainer(models.training_arguments(tmp_path, max_steps=3), *([] if later else [explicit]))
    if later:
        trainer.add_callback(explicit)
    trainer.train()
    assert (explicit.summary.steps, armed(trainer)[0].summary, said()) == (3, None, [])
    assert len(runs.records(tmp_path, Run)) == 1


def test_an_explicit_callback_that_is_off_wins_too(tmp_path):
    trainer = models.trainer(models.training_arguments(tmp_path, max_steps=3), PerfCallback(PerfConfig(enabled=False)))
    trainer.train()
    assert armed(trainer)[0].summary is None
    assert not (tmp_path / "perf_callbacks").exists()


def test_a_setting_that_makes_no_sense_is_told_once_and_training_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PERF_CALLBACKS_GC", "sinc")
    for _ in range(2):
        trainer = models.trainer(models.training_arguments(tmp_path, max_steps=1))
        assert trainer.train().global_step == 1
    accelerator = accelerated.an_accelerator(tmp_path)
    assert (armed(trainer), attached(accelerator)) == ([], None)
    assert FACTORIES["lightning"]() == []
    assert [line for line in capsys.readouterr().err.splitlines() if "perf_callbacks" in line] == [
        "perf_callbacks is off: PERF_CALLBACKS_GC: got 'sinc', wanted one of sync, freeze, observe, off."
    ]


def test_switched_off_nothing_is_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("PERF_CALLBACKS", "0")
    trainer = models.trainer(models.training_arguments(tmp_path, max_steps=1))
    trainer.train()
    assert FACTORIES["lightning"]() == FACTORIES["pytorch_lightning"]() == []
    assert attached(accelerated.an_accelerator(tmp_path)) is None
    assert not (tmp_path / "perf_callbacks").exists()


def test_two_trainers_one_in_the_other(tmp_path):
    class Distils(TrainerCallback):
        """Trains another model in the midst of training."""

        def on_step_end(self, args, state, control, **_):
            if state.global_step == 2:
                self.inner = models.trainer(models.training_arguments(tmp_path / "inner", max_steps=4))
                self.inner.train()

    distils = Distils()
    outer = models.trainer(models.training_arguments(tmp_path / "outer", max_steps=3), distils)
    outer.train()
    assert [armed(trainer)[0].summary.steps for trainer in (outer, distils.inner)] == [3, 4]
    assert [len(runs.records(tmp_path / name, Run)) for name in ("outer", "inner")] == [1, 1]


def test_a_sweep_leaves_nothing_behind(tmp_path):
    kept = []
    for number in range(5):
        trainer = models.trainer(models.training_arguments(tmp_path / str(number), max_steps=2))
        trainer.train()
        assert len(armed(trainer)) == 1
        kept.append(weakref.ref(trainer))
        del trainer
    assert [reference() for reference in kept] == [None] * 5
    assert [runs.records(tmp_path / str(number), Summary)[0].steps for number in range(5)] == [2] * 5


def test_a_search_of_hyperparameters_has_one_callback_in_each_trial(tmp_path):
    """As in `Trainer.hyperparameter_search`, the same trainer trains a new model each time."""
    arguments = models.training_arguments(tmp_path, max_steps=2)
    trainer = Trainer(model_init=lambda: models.llama(), args=arguments, train_dataset=models.Tokens())  # noqa: PLW0108 its arguments are counted
    for _ in range(3):
        trainer.train()
    assert len(armed(trainer)) == 1
    attempts = [runs.records(tmp_path, Summary, attempt=number)[0].steps for number in range(3)]
    assert attempts == [2] * 3


def test_a_loop_with_accelerate_is_measured_and_told_once_it_is_over(tmp_path, capsys, said):
    def program():
        accelerator = accelerated.an_accelerator(tmp_path)
        loop = accelerated.prepared(accelerator, accelerated.rows_of_tokens(12), accelerated.rows_of_tokens(4))
        accelerated.train(accelerator, *loop, epochs=2)
        return accelerator.trackers[0]

    program()  # it never says that it has ended
    assert runs.records(tmp_path, Summary)[0].steps == 12
    assert runs.records(tmp_path, Summary)[0].failure is None
    assert "12 steps" in capsys.readouterr().out
    assert said() == []


def test_an_accelerator_that_trains_nothing_hears_nothing(tmp_path, said, capsys):
    accelerator = accelerated.an_accelerator(tmp_path)
    accelerator.prepare(nn.Linear(2, 2))
    pickle.dumps(accelerator.state)
    accelerator.end_training()
    assert (said(), capsys.readouterr().out) == ([], "")


def test_an_explicit_attachment_wins(tmp_path, said):
    accelerator = accelerated.an_accelerator(tmp_path)
    explicit = attach(accelerator, PerfConfig(gc="observe"))
    loop = accelerated.prepared(accelerator, accelerated.rows_of_tokens(12))
    accelerated.train(accelerator, *loop)
    accelerator.end_training()
    assert (explicit.summary.steps, len(runs.records(tmp_path, Run)), said()) == (6, 1, [])


def test_an_explicit_attachment_that_is_off_wins_too(tmp_path):
    accelerator = accelerated.an_accelerator(tmp_path)
    attach(accelerator, PerfConfig(enabled=False))
    assert attached(accelerator) is None


@pytest.fixture
def _installed(tmp_path, monkeypatch):
    """The entry points of this tree, whatever is installed."""
    metadata = tmp_path / "installed" / "perf_callbacks-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: perf_callbacks\nVersion: 0\n")
    sections = (
        f"[{tree}.callbacks_factory]\narmed = perf_callbacks.autoload:{factory.__name__}\n"
        for tree, factory in zip(("lightning.pytorch", "pytorch_lightning"), FACTORIES.values(), strict=True)
    )
    (metadata / "entry_points.txt").write_text("".join(sections))
    monkeypatch.syspath_prepend(metadata.parent)


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize("tree", FACTORIES)
def test_a_lightning_trainer_gets_one_callback(tmp_path, tree, said):
    trainer = lightning_kit.trainer(tmp_path, of=tree)
    trainer.fit(lightning_kit.tree(tree).Automatic(), lightning_kit.loader())
    (ours,) = armed(trainer)
    assert type(ours).__module__ == f"perf_callbacks.{tree}"
    assert (ours.summary.steps, said()) == (6, [])
    assert pickle.loads(pickle.dumps(ours)).armed


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize("tree", FACTORIES)
def test_an_explicit_callback_wins_in_lightning_without_a_word(tmp_path, tree, said):
    explicit = lightning_kit.tree(tree).PerfCallback()
    trainer = lightning_kit.trainer(tmp_path, explicit, of=tree)
    trainer.fit(lightning_kit.tree(tree).Automatic(), lightning_kit.loader())
    assert (explicit.summary.steps, armed(trainer)[0].summary, said()) == (6, None, [])


@pytest.mark.parametrize("tree", FACTORIES)
def test_a_lightning_trainer_is_made_even_if_we_break(monkeypatch, tree, capsys):
    monkeypatch.setitem(sys.modules, f"perf_callbacks.{tree}", None)
    assert FACTORIES[tree]() == []
    assert capsys.readouterr().err.startswith("perf_callbacks is off: ")
