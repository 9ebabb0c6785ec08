"""How batches get to a device that seems to be there: through every door, by the real loaders and copies."""

import gc
import weakref

import accelerate.data_loader
import fake_accelerator
import pytest
import torch
from faults import ERRORS
from sampling import sampled
from torch.utils.data import DataLoader
from trainings import lightning_kit, models, transformers_trainer
from trainings.accelerated import an_accelerator, prepared, rows_of_tokens, train
from trainings.doors import DOORS
from trainings.models import Tokens, llama
from trainings.runs import records

from perf_callbacks import PerfConfig
from perf_callbacks.accelerate import attach
from perf_callbacks.kernel.engine.steps import NEVER
from perf_callbacks.kernel.records.fit_records import Checklist
from perf_callbacks.loaders.item import PinnedLoading
from perf_callbacks.loop import measure
from perf_callbacks.transformers import PerfCallback

COPYING = ("transformers", "accelerate")
"""Integrations whose trainer waits for copies, unless the callback changes this."""

pytestmark = pytest.mark.usefixtures("accelerate_state", "_as_found")


@pytest.fixture
def copies(monkeypatch):
    return fake_accelerator.install(monkeypatch)


@pytest.fixture
def _as_found():
    send = accelerate.data_loader.send_to_device
    yield
    assert accelerate.data_loader.send_to_device is send


def rows(directory, **which):
    return [(row.status, row.why) for row in records(directory, Checklist, **which) if row.item == "loaders"]


def statuses(directory, **which):
    return [status for status, _ in rows(directory, **which)]


def through_trainer(directory, *, config=None, resume=None, **arguments):
    usual = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    pin = arguments.pop("dataloader_pin_memory", True)
    arguments = models.training_arguments(directory, **usual | arguments)
    arguments.dataloader_pin_memory = pin  # on a CPU, transformers says False
    models.trainer(arguments, PerfCallback(config), train_dataset=Tokens(40)).train(resume_from_checkpoint=resume)


def test_a_trainer_copies_pinned_batches_while_it_runs_and_after_a_resume(tmp_path, copies):
    through_trainer(tmp_path)
    assert set(copies) == {True}
    assert len(copies) >= 4 * 3
    assert statuses(tmp_path) == ["applied"]
    copies.clear()
    through_trainer(tmp_path, resume=str(tmp_path / "checkpoint-2"))
    assert set(copies) == {True}
    assert statuses(tmp_path) == ["applied"]


def test_a_trainer_that_is_told_to_copy_so_is_so_already_until_it_resumes(tmp_path, copies):
    """Accelerate's loaders that skip batches forget it."""
    through_trainer(tmp_path, accelerator_config={"non_blocking": True})
    assert (set(copies), statuses(tmp_path)) == ({True}, ["already so"])
    copies.clear()
    through_trainer(tmp_path, accelerator_config={"non_blocking": True}, resume=str(tmp_path / "checkpoint-2"))
    assert (set(copies), statuses(tmp_path)) == ({True}, ["applied"])


def test_a_trainer_that_is_told_to_pin_nothing_pins_nothing(tmp_path, copies):
    through_trainer(tmp_path, dataloader_pin_memory=False)
    assert copies == []
    assert rows(tmp_path) == [("skipped", "the trainer is configured not to pin batches")]


@pytest.mark.parametrize(
    ("config", "status"),
    [({"loaders": "off"}, "skipped"), ({"loaders": "advise"}, "advised"), ({"skip": "loaders"}, "skipped")],
    ids=str,
)
def test_each_switch_leaves_copies_alone(tmp_path, copies, config, status):
    through_trainer(tmp_path, config=PerfConfig(**config))
    assert set(copies) == {False}
    assert statuses(tmp_path) == [status]


def test_a_loop_with_accelerate_pins_and_goes_on_while_it_copies(tmp_path, copies):
    accelerator = an_accelerator(tmp_path)
    attach(accelerator)
    training = rows_of_tokens(8)
    model, optimizer, loader, _ = prepared(accelerator, training)
    train(accelerator, model, optimizer, loader, epochs=2, skip=1)
    assert loader.base_dataloader.pin_memory
    accelerator.end_training()
    assert not loader.base_dataloader.pin_memory
    assert set(copies) == {True}
    assert len(copies) >= 3 * 3
    assert statuses(tmp_path) == ["applied"]


@pytest.mark.parametrize("of", lightning_kit.FRAMEWORKS)
def test_lightning_pins_from_the_first_batch_on(tmp_path, copies, of):
    callback, loader, made = lightning_kit.tree(of).PerfCallback(), lightning_kit.loader(8), []

    class Reloading(lightning_kit.tree(of).Automatic):
        def train_dataloader(self):
            made.append(lightning_kit.loader(8))
            return made[-1]

    trainer = lightning_kit.trainer(tmp_path, callback, of=of, max_steps=4, reload_dataloaders_every_n_epochs=1)
    trainer.fit(Reloading(), None, loader)
    assert len(copies) >= 4
    assert len(made) == 2
    assert not any(one.pin_memory for one in (loader, *made))
    assert "process_dataloader" not in vars(trainer.strategy)
    assert statuses(tmp_path) == ["applied"]


@pytest.mark.parametrize(("through", "error"), sampled({name: DOORS[name] for name in COPYING}, ERRORS))
def test_however_it_ends_copies_are_as_found(tmp_path, monkeypatch, copies, through, error):
    send, arguments = accelerate.data_loader.send_to_device, models.training_arguments

    def pinning(*args, **options):
        pinned = arguments(*args, **options)
        pinned.dataloader_pin_memory = True  # on a CPU, transformers says False
        return pinned

    def after_step(step):
        if step == 3:
            assert accelerate.data_loader.send_to_device is not send
            assert set(copies) == {True}
            raise error

    monkeypatch.setattr(transformers_trainer, "training_arguments", pinning)
    with pytest.raises(type(error)):
        through(tmp_path / "ours", after_step=after_step).run()
    assert accelerate.data_loader.send_to_device is send
    copies.clear()
    through(tmp_path / "off", checklist="off").run()
    assert set(copies) <= {False}


def test_a_fit_that_never_begins_leaves_loaders_as_found(tmp_path, copies):
    class Failing(lightning_kit.tree().Automatic):
        def on_train_start(self):
            raise RuntimeError("no more")

    loader = lightning_kit.loader(8)
    trainer = lightning_kit.trainer(tmp_path, lightning_kit.tree().PerfCallback())
    with pytest.raises(RuntimeError, match="no more"):
        trainer.fit(Failing(), loader)
    assert not loader.pin_memory
    assert not {"process_dataloader", "batch_to_device"} & set(vars(trainer.strategy))


def through_loop(directory, loader):
    model = llama()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pinned = []
    with measure(model=model, optimizer=optimizer, loader=loader, config=PerfConfig(output_dir=str(directory))) as perf:
        for batch in perf.loader:
            pinned.append(batch["input_ids"].is_pinned())
            batch = {name: value.to("cpu", non_blocking=True) for name, value in batch.items()}  # noqa: PLW2901
            model(**batch).loss.backward()
            optimizer.step()
    return pinned


def test_a_loop_gets_what_is_pinned(tmp_path, copies):
    loader = DataLoader(Tokens(4), batch_size=2)
    assert through_loop(tmp_path, loader) == [True] * 2
    assert not loader.pin_memory
    assert statuses(tmp_path) == ["applied"]


def dues(monkeypatch):
    """When the item wants to be asked again, each time that it was asked."""
    found, inner = [], PinnedLoading.step_ended
    monkeypatch.setattr(PinnedLoading, "step_ended", lambda self, step: (inner(self, step), found.append(self.due)))
    return found


def test_a_loop_decides_at_its_first_batch_and_never_again(tmp_path, copies, monkeypatch):
    found = dues(monkeypatch)
    through_loop(tmp_path, DataLoader(Tokens(16), batch_size=2))
    assert {*found} == {NEVER}
    assert statuses(tmp_path) == ["applied"]


def test_a_loop_whose_batches_can_not_be_pinned_is_told(tmp_path, copies, monkeypatch):
    monkeypatch.setattr(torch.utils.data._utils.pin_memory, "pin_memory", lambda data, _: data)
    loader = DataLoader(Tokens(4), batch_size=2)
    assert through_loop(tmp_path, loader) == [False] * 2
    assert not loader.pin_memory
    assert rows(tmp_path)[1:] == [("not applicable", "the loader does not pin batches of type dict")]


def test_a_loop_for_which_memory_is_short_pins_no_more(tmp_path, monkeypatch):
    fake_accelerator.install(monkeypatch, memory_available=100_000, local_world_size=8)
    through_loop(tmp_path, DataLoader(Tokens(8), batch_size=2))
    assert rows(tmp_path)[1:] == [("skipped", "pinned batches would take 0 MB, more than the 0 MB allowed")]


def test_batches_that_are_never_seen_are_looked_for_ever_rarer(tmp_path, copies, monkeypatch):
    found = dues(monkeypatch)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Tokens(4), batch_size=2)
    with measure(model=model, optimizer=optimizer, loader=loader, config=PerfConfig(output_dir=str(tmp_path))):
        for _ in range(40):
            model(torch.ones(2, 4)).mean().backward()
            optimizer.step()
    assert {*found} == {2, 4, 8, 16, 32, 64}


def test_a_loop_that_nobody_ends_is_freed_with_its_loader(tmp_path, copies):
    def begin():
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(Tokens(4), batch_size=2)
        config = PerfConfig(output_dir=str(tmp_path))
        perf = measure(model=model, optimizer=optimizer, loader=loader, config=config).__enter__()
        next(iter(perf.loader))
        return [weakref.ref(one) for one in (model, optimizer, loader, perf)]

    gone = begin()
    gc.collect()
    assert [one() for one in gone] == [None] * 4


def test_a_loop_whose_loader_pins_is_so_already(tmp_path, copies):
    loader = DataLoader(Tokens(4), batch_size=2, pin_memory=True)
    through_loop(tmp_path, loader)
    assert loader.pin_memory
    assert statuses(tmp_path) == ["already so"]


@pytest.mark.usefixtures("copies")
def test_a_loader_that_is_under_way_is_left_alone(tmp_path):
    loader = DataLoader(Tokens(4), batch_size=2)
    loader._iterator = iter(())
    assert through_loop(tmp_path, loader)
    assert not loader.pin_memory


def test_without_an_accelerator_there_is_nothing_to_do(tmp_path):
    through_trainer(tmp_path)
    assert rows(tmp_path) == [("not applicable", "there is no accelerator to copy to")]
