"""Wrong uses of each way in, and the sentence that each of them gets."""

import accelerate
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer as LightningTrainer
from torch import nn
from torch.utils.data import DataLoader
from trainings import accelerated
from transformers import Trainer, TrainingArguments

import perf_callbacks.accelerate
import perf_callbacks.lightning
import perf_callbacks.pytorch_lightning
import perf_callbacks.transformers
from perf_callbacks import ConfigError, PerfConfig
from perf_callbacks.loop import measure

HF, LIGHTNING = perf_callbacks.transformers.PerfCallback, perf_callbacks.lightning.PerfCallback
PYTORCH_LIGHTNING = perf_callbacks.pytorch_lightning.PerfCallback

BATCHES = [torch.ones(4, 2) for _ in range(6)]


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def training_step(self, batch, _):
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def lightning_fit(callback, directory):
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    trainer = LightningTrainer(max_steps=1, callbacks=[callback], default_root_dir=directory, **options)
    trainer.fit(Module(), DataLoader(torch.ones(4, 2)))


def trainer_of(callback, directory):
    arguments = TrainingArguments(output_dir=str(directory), report_to=[], use_cpu=True)
    return Trainer(model=nn.Linear(2, 2), args=arguments, callbacks=[callback])


def measured(**wrong):
    model = nn.Linear(2, 1)
    right = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "loader": BATCHES}
    return measure(**(right | wrong))


def attached(*wrong, **strays):
    return perf_callbacks.accelerate.attach(accelerate.Accelerator(cpu=True), *wrong, **strays)


def import_callback(_):
    from perf_callbacks import PerfCallback  # noqa: F401


def import_attach(_):
    from perf_callbacks import PerfConfig, attach  # noqa: F401


def import_measure(_):
    from perf_callbacks import measure  # noqa: F401


REFUSED = {
    "a setting for a callback": (lambda _: HF(gc="off"), "PerfCallback(PerfConfig(gc='off'))"),
    "a setting for Lightning's callback": (lambda _: LIGHTNING(gc="off"), "PerfCallback(PerfConfig(gc='off'))"),
    "a word that is no setting": (lambda _: HF(colour="red"), "unexpected keyword argument 'colour'"),
    "a dict for a configuration": (lambda _: HF({"gc": "off"}), "config: got a dict, wanted a PerfConfig"),
    "a dict for Lightning": (lambda _: LIGHTNING({"gc": "off"}), "config: got a dict, wanted a PerfConfig"),
    "a dict for an accelerator": (lambda _: attached({"gc": "off"}), "config: got a dict, wanted a PerfConfig"),
    "the class PerfConfig": (
        lambda _: HF(PerfConfig),
        "config: got the class PerfConfig, wanted a PerfConfig, such as",
    ),
    "a callback for a configuration": (lambda _: attached(HF()), "config: got a PerfCallback, wanted a PerfConfig"),
    "a setting for an accelerator": (
        lambda _: attached(gc="observe"),
        "gc: settings go into a PerfConfig: attach(accelerator, PerfConfig(gc='observe'))",
    ),
    "a setting for a loop": (
        lambda _: measured(gc="observe"),
        "gc: settings go into a PerfConfig: measure(..., config=PerfConfig(gc='observe'))",
    ),
    "a word that is no setting of a loop": (lambda _: measured(colour="red"), "measure() got an unexpected keyword"),
    "a dict for a loop": (lambda _: measured(config={"gc": "off"}), "config: got a dict, wanted a PerfConfig"),
    "no model": (lambda _: measured(model=None), "model: got a NoneType, wanted the torch.nn.Module"),
    "a class for a model": (lambda _: measured(model=nn.Linear), "model: got the class Linear"),
    "no optimizer": (lambda _: measured(optimizer=None), "optimizer: got a NoneType, wanted the torch.optim.Optimizer"),
    "a class for an optimizer": (
        lambda _: measured(optimizer=torch.optim.SGD),
        "optimizer: got the class SGD, wanted the torch.optim.Optimizer",
    ),
    "a class for a loader": (lambda _: measured(loader=DataLoader), "loader: got the class DataLoader"),
    "the measurement for its loader": (lambda _: [*measured()], "iterate over perf.loader, not over perf"),
    "a number for a loader": (
        lambda _: measured(loader=7),
        "loader: got a int, wanted an iterable of batches, or None",
    ),
    "no loader, and its batches": (lambda _: measured(loader=None).loader, "measure() got no loader"),
    "the class Accelerator": (
        lambda _: perf_callbacks.accelerate.attach(accelerate.Accelerator),
        "accelerator: got the class Accelerator, wanted an accelerate.Accelerator, as Accelerator() makes it",
    ),
    "no accelerator": (lambda _: perf_callbacks.accelerate.attach(None), "accelerator: got a NoneType"),
    "the class for Lightning": (lambda path: lightning_fit(LIGHTNING, path), "write PerfCallback(), not PerfCallback"),
    "the class of the other Lightning": (
        lambda path: lightning_fit(PYTORCH_LIGHTNING, path),
        "write PerfCallback(), not PerfCallback",
    ),
    "Hugging Face's class for Lightning": (
        lambda path: lightning_fit(HF, path),
        "take perf_callbacks.lightning.PerfCallback",
    ),
    "Lightning's class for Hugging Face": (
        lambda path: trainer_of(LIGHTNING, path),
        "take perf_callbacks.transformers.PerfCallback",
    ),
    "Hugging Face's callback for Lightning": (
        lambda path: lightning_fit(HF(), path),
        "take perf_callbacks.lightning.PerfCallback",
    ),
    "Lightning's callback for Hugging Face": (
        lambda path: trainer_of(LIGHTNING(), path),
        "take perf_callbacks.transformers.PerfCallback",
    ),
    "PerfCallback from the package": (import_callback, "it is in perf_callbacks.transformers (Hugging Face), perf_c"),
    "attach from the package": (import_attach, "cannot import name 'attach' from 'perf_callbacks': it is in perf_"),
    "measure from the package": (import_measure, "cannot import name 'measure' from 'perf_callbacks': it is in perf_"),
    "measure of the package": (
        lambda _: perf_callbacks.measure,
        "has no attribute 'measure': it is in perf_callbacks.",
    ),
}


@pytest.mark.parametrize(("use", "sentence"), REFUSED.values(), ids=REFUSED)
def test_a_wrong_use_is_refused_with_a_sentence(use, sentence, tmp_path):
    with pytest.raises((ConfigError, TypeError, AttributeError, ImportError)) as refused:
        use(tmp_path)
    assert sentence in str(refused.value)


def test_a_name_of_another_module_is_no_attribute_of_the_package():
    assert not any(hasattr(perf_callbacks, name) for name in ("PerfCallback", "attach", "measure"))
    with pytest.raises(ImportError, match=r"^cannot import name 'nothing' from 'perf_callbacks' \("):
        from perf_callbacks import nothing  # noqa: F401


def train(model, optimizer, batches):
    for batch in batches:
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


class Apart:
    """A loop, and another model and optimizer that it might use instead of those it tells of."""

    def __init__(self, directory):
        self.model, self.other = nn.Linear(2, 1), nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD([*self.model.parameters(), *self.other.parameters()], lr=0.1)
        self.another = torch.optim.SGD(self.model.parameters(), lr=0.1)
        config = PerfConfig(output_dir=str(directory), gc="off")
        self.perf = measure(model=self.model, optimizer=self.optimizer, loader=BATCHES, config=config)


def own_loader(apart):
    with apart.perf:
        train(apart.model, apart.optimizer, BATCHES)


def own_loader_for_one_step(apart):
    with apart.perf:
        train(apart.model, apart.optimizer, BATCHES[:1])


def another_model(apart):
    with apart.perf:
        train(apart.other, apart.optimizer, apart.perf.loader)


def another_optimizer(apart):
    with apart.perf:
        train(apart.model, apart.another, apart.perf.loader)


def no_with(apart):
    train(apart.model, apart.optimizer, apart.perf.loader)
    train(apart.model, apart.optimizer, apart.perf.loader)


def as_it_should_be(apart):
    with apart.perf:
        train(apart.model, apart.optimizer, apart.perf.loader)
    train(apart.model, apart.optimizer, apart.perf.loader)


def no_steps_at_all(apart):
    with apart.perf:
        pass


TOLD = {
    own_loader: ["3 optimizer steps and no batch: iterate over perf.loader"],
    own_loader_for_one_step: ["1 optimizer step and no batch: iterate over perf.loader"],
    another_model: ["3 optimizer steps, and the model given to measure() was never called"],
    another_optimizer: ["the loop was over without a step of the optimizer given to measure()"],
    no_with: ["measures only inside of the with block"],
    as_it_should_be: [],
    no_steps_at_all: [],
}


@pytest.mark.parametrize(("loop", "sentences"), TOLD.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_loop_that_measures_nothing_is_told_once(loop, sentences, tmp_path, caplog):
    loop(Apart(tmp_path))
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == len(sentences)
    assert all(sentence in message for sentence, message in zip(sentences, told, strict=True))


class Prepared:
    """A loop with an accelerator, its parts before and after `prepare`."""

    def __init__(self, directory):
        self.accelerator = accelerated.an_accelerator(directory)
        perf_callbacks.accelerate.attach(self.accelerator, PerfConfig(output_dir=str(directory), gc="off"))
        self.model, self.loader = nn.Linear(2, 1), DataLoader(torch.ones(12, 2), batch_size=2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.prepared = self.accelerator.prepare(
            torch.compile(self.model, backend="eager"), self.optimizer, self.loader
        )

    def train(self, model=None, optimizer=None, loader=None):
        usual = self.prepared
        for batch in loader or usual[2]:
            self.accelerator.backward((model or usual[0])(batch).sum())
            (optimizer or usual[1]).step()
        self.accelerator.end_training()


PREPARED = {
    "as it should be": (lambda _: {}, []),
    "the loader before prepare": (
        lambda loop: {"loader": loop.loader},
        ["3 optimizer steps and no batch from a prepared loader: iterate over the loader that accelerator.prepare("],
    ),
    "batches of its own for two steps": (
        lambda _: {"loader": [torch.ones(2, 2)] * 2},
        ["2 optimizer steps and no batch from a prepared loader"],
    ),
    "a model that was not prepared": (
        lambda _: {"model": nn.Linear(2, 1)},
        ["3 optimizer steps, and no prepared model was called: call the model that accelerator.prepare("],
    ),
    "an optimizer that was not prepared": (
        lambda loop: {"optimizer": torch.optim.SGD(loop.model.parameters(), lr=0.1)},
        ["the loop was over without a step of the optimizer that was prepared first"],
    ),
}


@pytest.mark.usefixtures("accelerate_state")
@pytest.mark.parametrize(("parts", "sentences"), PREPARED.values(), ids=PREPARED)
def test_a_loop_that_bypasses_its_accelerator_is_told_once(parts, sentences, tmp_path, caplog):
    loop = Prepared(tmp_path)
    loop.train(**parts(loop))
    told = [record.getMessage() for record in caplog.records if record.name == "perf_callbacks"]
    assert len(told) == len(sentences), told
    assert all(sentence in message for sentence, message in zip(sentences, told, strict=True))
