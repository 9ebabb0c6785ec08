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
    monkeypatch.setenv("PERF_CALLBACKS", "1")
    for module in (transformers.trainer, accelerate_module):
        autoload.ACTIONS[module.__name__](module)


@pytest.fixture
def messages(caplog):
    return lambda: [record.getMessage() for record in caplog.records if record.name == "perf_callbacks"]


def attached(accelerator):
    return getattr(type(accelerator), ATTRIBUTE, None)


def armed(trainer):
    callbacks = trainer.callback_handler.callbacks if isinstance(trainer, Trainer) else trainer.callbacks
    return [callback for callback in callbacks if getattr(callback, "armed", False)]


class Reporter(TrainerCallback):
    pass


def test_a_trainer_gets_a_callback_before_others_its_accelerator_none(tmp_path, messages):
    trainer = models.trainer(models.training_arguments(tmp_path, max_steps=3), Reporter())
    assert [type(callback) for callback in trainer.callback_handler.callbacks].index(ArmedCallback) == 0
    trainer.train()
    assert attached(trainer.accelerator) is None
    assert (len(runs.records(tmp_path, Run)), armed(trainer)[0].summary.steps, messages()) == (1, 3, [])
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
def test_a_trainer_of_other_default_callbacks_gets_a_callback(tmp_path, monkeypatch, kind, explicit):
    monkeypatch.setattr(transformers.trainer, "DEFAULT_CALLBACKS", [DefaultFlowCallback])
    trainer = models.trainer(models.training_arguments(tmp_path, max_steps=3), kind=kind)
    ours = PerfCallback()
    if explicit:
        trainer.add_callback(ours)
    for attempt in range(2):
        trainer.train()
        measuring, *others = [ours] * explicit + armed(trainer)
        assert (measuring.summary.steps, [callback.summary for callback in others]) == (3, [None] * explicit)
        assert runs.records(tmp_path, Summary, attempt=attempt)[0].steps == 3


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("later", [False, True], ids=["at once", "added later"])
def test_an_explicit_callback_wins_without_a_word_also_if_it_is_off(tmp_path, messages, later, enabled):
    explicit = PerfCallback(PerfConfig(gc="observe", enabled=enabled))
    trainer = models.trainer(models.training_arguments(tmp_path, max_steps=3), *([] if later else [explicit]))
    if later:
        trainer.add_callback(explicit)
    trainer.train()
    assert (armed(trainer)[0].summary, messages()) == (None, [])
    assert (explicit.summary.steps if enabled else explicit.summary) == (3 if enabled else None)
    assert len([*tmp_path.rglob("rank0.jsonl")]) == enabled


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


def test_a_loop_with_accelerate_is_measured_and_told_once_it_is_over(tmp_path, capsys, messages):
    def program():
        accelerator = accelerated.an_accelerator(tmp_path)
        loop = accelerated.prepared(accelerator, accelerated.rows_of_tokens(12), accelerated.rows_of_tokens(4))
        accelerated.train(accelerator, *loop, epochs=2)
        return accelerator.trackers[0]

    program()  # it never says that it has ended
    assert runs.records(tmp_path, Summary)[0].steps == 12
    assert runs.records(tmp_path, Summary)[0].failure is None
    assert "12 steps" in capsys.readouterr().out
    assert messages() == []


def test_an_accelerator_that_trains_nothing_hears_nothing(tmp_path, messages, capsys):
    accelerator = accelerated.an_accelerator(tmp_path)
    accelerator.prepare(nn.Linear(2, 2))
    pickle.dumps(accelerator.state)
    accelerator.end_training()
    assert (messages(), capsys.readouterr().out) == ([], "")


def test_an_explicit_attachment_wins_also_if_it_is_off(tmp_path, messages):
    accelerator = accelerated.an_accelerator(tmp_path)
    attach(accelerator, PerfConfig(enabled=False))
    assert attached(accelerator) is None
    accelerator = accelerated.an_accelerator(tmp_path)
    explicit = attach(accelerator, PerfConfig(gc="observe"))
    loop = accelerated.prepared(accelerator, accelerated.rows_of_tokens(12))
    accelerated.train(accelerator, *loop)
    accelerator.end_training()
    assert (explicit.summary.steps, len(runs.records(tmp_path, Run)), messages()) == (6, 1, [])


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
def test_a_lightning_trainer_gets_a_single_callback(tmp_path, tree, messages):
    trainer = lightning_kit.trainer(tmp_path, of=tree)
    trainer.fit(lightning_kit.tree(tree).Automatic(), lightning_kit.loader())
    (ours,) = armed(trainer)
    assert type(ours).__module__ == f"perf_callbacks.{tree}"
    assert (ours.summary.steps, messages()) == (6, [])
    assert pickle.loads(pickle.dumps(ours)).armed


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize("tree", FACTORIES)
def test_an_explicit_callback_wins_in_lightning_without_a_word(tmp_path, tree, messages):
    explicit = lightning_kit.tree(tree).PerfCallback()
    trainer = lightning_kit.trainer(tmp_path, explicit, of=tree)
    trainer.fit(lightning_kit.tree(tree).Automatic(), lightning_kit.loader())
    assert (explicit.summary.steps, armed(trainer)[0].summary, messages()) == (6, None, [])


@pytest.mark.parametrize("tree", FACTORIES)
def test_a_lightning_trainer_is_made_even_if_we_break(monkeypatch, tree, capsys):
    monkeypatch.setitem(sys.modules, f"perf_callbacks.{tree}", None)
    assert FACTORIES[tree]() == []
    assert capsys.readouterr().err.startswith("perf_callbacks is off: ")
