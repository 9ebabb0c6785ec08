"""Only training work is counted: what else runs in the counted step is not the model's, and runs as ever."""

import pytest
import torch
from accelerate import Accelerator
from counted import counts, fit, ids, known, left_behind, loss_of, truth
from rows import each_row
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader
from trainings import lightning_kit, models
from transformers import Trainer, TrainerCallback

from perf_callbacks import PerfConfig
from perf_callbacks.accelerate import attach
from perf_callbacks.flops import fingerprint
from perf_callbacks.loop import measure
from perf_callbacks.transformers import PerfCallback

ROWS, WIDTH = 4, 8
PRODUCT = 2 * ROWS * WIDTH * WIDTH
STEP = 2 * PRODUCT
"""A layer forward, and the gradients of its weights."""

BATCH = torch.ones(ROWS, WIDTH)


def layer():
    torch.manual_seed(0)
    return nn.Linear(WIDTH, WIDTH)


def nothing(_model):
    pass


def train(directory, *, model=None, batches=(BATCH,) * 4, loss=None, each=1, **places):
    """A fit that has something else to do first, between and behind forward and backward, or last in each step."""
    model = model or layer()
    first, between, behind, last = [places.get(name, nothing) for name in ("first", "between", "behind", "last")]

    def step(_, batch):
        first(model)
        value = loss_of(model, batch) if loss is None else loss(batch)
        between(model)
        value.backward()
        behind(model)

    return fit(directory, model, batches, step, each=each, after=lambda: last(model))


def a_product(_model):
    torch.ones(64, 64) @ torch.ones(64, 64)


def its_weights(model):
    model.weight @ model.weight


@torch.no_grad()
def its_norm(model):
    torch.linalg.norm(model.weight @ model.weight)


@torch.no_grad()
def a_pass(model):
    model(torch.ones(100, WIDTH))


def a_sample(model):
    model.eval()
    a_pass(model)
    model.train()


@torch.inference_mode()
def an_inference(model):
    a_sample(model)


BESIDES = {
    "logging": dict.fromkeys(["first", "behind", "last"], a_product),
    "weights": dict.fromkeys(["first", "behind", "last"], its_weights),
    "norms": dict.fromkeys(["first", "between", "behind", "last"], its_norm),
    "sampling": {"last": a_sample},
    "sampling in training mode": {"last": a_pass},
    "sampling in inference mode": {"behind": lambda model: (an_inference(model), torch.ones(2))},
}
"""Torch puts back dispatch keys when inference mode ends: if one had no mode then, `torch.ones` would fail."""


@each_row("name", BESIDES)
def test_work_of_a_loop_beside_its_model_is_not_counted(tmp_path, name):
    before = left_behind()
    train(tmp_path / name, **BESIDES[name])
    (record,) = counts(tmp_path / name)
    assert (record.model_flops, record.hardware_flops) == (STEP, STEP)
    assert (record.lower_bound, record.uncounted) == (False, {})
    assert {*known(tmp_path / name)[2:]} == {STEP}
    assert left_behind() == before


TEACHER = layer().requires_grad_(requires_grad=False).eval()


def teach(_model):
    TEACHER(BATCH)


@pytest.mark.parametrize(("place", "lower_bound"), [("first", True), ("between", False), ("last", False)])
def test_a_teacher_before_the_model_makes_a_lower_bound(tmp_path, place, lower_bound):
    train(tmp_path, **{place: torch.no_grad()(teach)})
    (record,) = counts(tmp_path)
    assert record.lower_bound is lower_bound
    assert record.model_flops == STEP + PRODUCT * (place == "between")
    assert [*record.uncounted] == ["Linear without gradients"] * lower_bound


@pytest.mark.parametrize(("gradients", "each"), [(False, 1), (True, 2)])
def test_a_teacher_of_later_steps_makes_a_lower_bound_from_there_on(tmp_path, monkeypatch, gradients, each):
    """It is frozen, so its result requires no gradients in either case."""
    monkeypatch.setattr(fingerprint, "compiles", lambda: False)  # what an earlier test has compiled
    numbers = iter(range(12 * each))

    def first(model):
        if next(numbers) in {4 * each, 5 * each}:
            with torch.set_grad_enabled(gradients):
                teach(model)

    train(tmp_path, first=first, batches=[BATCH] * 12 * each, each=each)
    records = counts(tmp_path)
    assert [record.step for record in records] == [2, 2, 11]
    assert [record.lower_bound for record in records] == [False, True, True]
    assert [[*record.uncounted] for record in records[1:]] == [["Linear without gradients"]] * 2


def encode(rows):
    with torch.no_grad():
        TEACHER(torch.stack(rows))
    return torch.stack(rows)


def multiply(rows):
    a_product(None)
    return torch.stack(rows)


@pytest.mark.parametrize(("collate", "uncounted"), [(encode, ["Linear without gradients"]), (multiply, [])])
def test_a_model_that_collates_makes_a_lower_bound(tmp_path, collate, uncounted):
    train(tmp_path, batches=DataLoader([BATCH[0]] * 16, ROWS, collate_fn=collate))
    (record,) = counts(tmp_path)
    assert (record.model_flops, [*record.uncounted]) == (STEP, uncounted)
    assert {*known(tmp_path)[2:]} == {STEP}


def test_passes_in_training_mode_between_accelerate_steps_are_not_counted(tmp_path):
    accelerator = Accelerator(cpu=True)
    perf = attach(accelerator, PerfConfig(output_dir=str(tmp_path), gc="off"))
    model, loader = layer(), DataLoader(torch.ones(8 * ROWS, WIDTH), ROWS)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), loader)
    for batch in loader:
        accelerator.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        a_pass(model)
    perf.close()
    assert {*known(tmp_path)[2:]} == {STEP}
    assert not counts(tmp_path)[0].lower_bound


def test_a_generator_that_runs_again_for_its_critic_makes_a_lower_bound(tmp_path):
    """No batch is fetched between its pass without gradients and the critic's backward."""
    critic = nn.Linear(WIDTH, 2)

    def train_critic(model):
        with torch.no_grad():
            fake = model(BATCH)
        critic(fake).sum().backward()

    train(tmp_path, last=train_critic)
    (record,) = counts(tmp_path)
    assert (record.lower_bound, [*record.uncounted]) == (True, ["Linear without gradients"])


def test_a_critic_is_counted_where_it_is_trained(tmp_path):
    critic = nn.Linear(WIDTH, 2)
    train(tmp_path, last=lambda model: critic(model(BATCH).detach()).sum().backward())
    (record,) = counts(tmp_path)
    assert record.model_flops == STEP + PRODUCT + 2 * (2 * ROWS * WIDTH * 2)


def without_loader(directory, step, *, loader=None):
    """A model in a loop that hands its batches over, or not."""
    model = layer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    config = PerfConfig(output_dir=str(directory), gc="off")
    with measure(model=model, optimizer=optimizer, loader=loader, config=config) as perf:
        for batch in perf.loader if loader else [BATCH] * 4:
            step(model, batch)
            optimizer.step()
            optimizer.zero_grad()
    (record,) = counts(directory)
    return record


@pytest.mark.parametrize("loader", [[BATCH] * 4, None])
def test_a_model_checkpointed_as_a_whole_with_reentry_runs_its_forward(tmp_path, loader):
    def step(model, batch):
        checkpoint(model, batch.clone().requires_grad_(), use_reentrant=True).sum().backward()

    record = without_loader(tmp_path, step, loader=loader)
    assert (record.model_flops, record.hardware_flops, record.lower_bound) == (3 * PRODUCT, 4 * PRODUCT, False)


@pytest.mark.parametrize(("act", "lower_bound"), [(its_norm, False), (torch.no_grad()(teach), True)])
def test_a_loop_without_a_loader_that_samples_has_a_lower_bound(tmp_path, act, lower_bound):
    def step(model, batch):
        act(model)
        model(batch).sum().backward()

    assert without_loader(tmp_path, step).lower_bound is lower_bound


def test_a_learned_filter_outside_of_any_module_is_counted(tmp_path):
    stem, model = nn.Parameter(torch.eye(WIDTH)), layer()

    def loss(batch):
        (stem @ stem).sum()  # no backward goes through this one
        return model(batch @ stem).square().mean()

    train(tmp_path, model=model, loss=loss)
    assert {*known(tmp_path)[2:]} == {5 * PRODUCT}


def test_parts_of_a_model_that_is_not_called_itself_are_counted(tmp_path):
    model = nn.ModuleList([layer(), layer()])
    train(tmp_path, model=model, last=a_product, loss=lambda batch: model[1](model[0](batch)).sum())
    assert {*known(tmp_path)[2:]} == {5 * PRODUCT}


def test_an_evaluation_between_micro_batches_is_not_counted(tmp_path):
    model = layer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    config = PerfConfig(output_dir=str(tmp_path), gc="off")
    with measure(model=model, optimizer=optimizer, loader=[BATCH] * 6, config=config) as perf:
        for number, batch in enumerate(perf.loader, 1):
            model(batch).sum().backward()
            if number % 2:
                with perf.evaluation():
                    a_pass(model)
            else:
                optimizer.step()
                optimizer.zero_grad()
    assert {*known(tmp_path)[2:]} == {2 * STEP}


class Doing(TrainerCallback):
    """Does something with the model at the begin and the end of each step."""

    def __init__(self, do):
        self.do = do

    def on_step_begin(self, args, state, control, model=None, **_):
        self.do(model)

    def on_step_end(self, args, state, control, model=None, **_):
        self.do(model)


def generate(model):
    model.generate(torch.ones(1, 4, dtype=torch.long), max_new_tokens=3, do_sample=False)


def with_gradients(model):
    model(input_ids=torch.ones(5, 16, dtype=torch.long))


@pytest.mark.parametrize("do", [generate, with_gradients])
@pytest.mark.filterwarnings("ignore:.*generation flags.*")
def test_work_of_callbacks_of_a_trainer_is_not_counted(tmp_path, do):
    arguments = models.training_arguments(tmp_path, max_steps=4)
    models.trainer(arguments, PerfCallback(), Doing(do), train_dataset=models.Tokens(32, mask=False)).train()
    assert {*known(tmp_path)[2:]} == {truth(models.llama(), ids(4, 16))}
    assert not counts(tmp_path)[0].lower_bound


class Twice(Trainer):
    """Adds a loss of its own, outside of `compute_loss`: the angles of its positions are made without gradients."""

    def training_step(self, model, inputs, *rest):
        loss = super().training_step(model, inputs, *rest)
        self.accelerator.backward(model(**inputs).loss)
        return loss


def test_a_second_loss_outside_the_forward_of_a_trainer_is_counted_in_full(tmp_path):
    arguments = models.training_arguments(tmp_path, max_steps=4)
    models.trainer(arguments, PerfCallback(), kind=Twice, train_dataset=models.Tokens(32, mask=False)).train()
    (record,) = counts(tmp_path)
    assert (record.lower_bound, record.uncounted) == (False, {})
    assert record.model_flops == pytest.approx(2 * truth(models.llama(), ids(4, 16)), rel=1e-3)


def test_a_validation_of_a_trainer_in_each_step_leaves_the_count_as_it_is(tmp_path):
    """It runs in inference mode, whose end must not take dispatch keys away from the next tensor."""
    kinds = lightning_kit.tree()

    class Makes(kinds.Callback):
        def on_train_batch_start(self, *_):
            torch.ones(2)

    often = {"val_check_interval": 1, "check_val_every_n_epoch": None}
    trainer = lightning_kit.trainer(tmp_path, Makes(), kinds.PerfCallback(), max_steps=4, **often)
    trainer.fit(kinds.Automatic(), lightning_kit.loader(), lightning_kit.loader())
    assert known(tmp_path)[1:] == [2 * (2 * 4 * lightning_kit.WIDTH**2)] * 3
