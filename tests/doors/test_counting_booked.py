"""Only training work is counted: what else runs in the counted step is not the model's."""

import pytest
import sparks
import tiny
import torch
from counted import counts, ids, known, left_behind, truth
from torch import nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback

from perf_callbacks import PerfConfig
from perf_callbacks.loop import measure
from perf_callbacks.transformers import PerfCallback

ROWS, WIDTH = 4, 8
PRODUCT = 2 * ROWS * WIDTH * WIDTH
STEP = 2 * PRODUCT
"""A layer forward, and the gradients of its weights."""


def layer():
    torch.manual_seed(0)
    return nn.Linear(WIDTH, WIDTH)


def batches(steps=4):
    return [torch.ones(ROWS, WIDTH)] * steps


def multiply():
    return torch.ones(64, 64) @ torch.ones(64, 64)


class Fit:
    """A plain loop that has something else to do at four places."""

    def __init__(self, directory, *, model=None, steps=4, loader=None, **places):
        self.model = layer() if model is None else model
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        config = PerfConfig(output_dir=str(directory), gc="off")
        do = {name: places.get(name, lambda _: None) for name in ("first", "forwards", "backwards", "last")}
        with measure(model=self.model, optimizer=optimizer, loader=loader or batches(steps), config=config) as perf:
            for batch in perf.loader:
                do["first"](self)
                loss = places.get("loss", self.loss)(batch)
                do["forwards"](self)
                loss.backward()
                do["backwards"](self)
                optimizer.step()
                optimizer.zero_grad()
                do["last"](self)

    def loss(self, batch):
        return self.model(batch).square().mean()


def a_product(fit):
    multiply()


def its_weights(fit):
    fit.model.weight @ fit.model.weight


@torch.no_grad()
def their_norm(fit):
    torch.linalg.norm(fit.model.weight @ fit.model.weight)


def a_sample(fit):
    fit.model.eval()
    with torch.no_grad():
        fit.model(torch.ones(100, WIDTH))
    fit.model.train()


@pytest.mark.parametrize(
    "places",
    [
        {"first": a_product, "last": a_product, "backwards": a_product},
        {"first": its_weights, "last": its_weights, "backwards": its_weights},
        {"first": their_norm, "forwards": their_norm, "backwards": their_norm, "last": their_norm},
        {"last": a_sample},
    ],
    ids=["logging", "weights", "norms", "sampling"],
)
def test_what_a_loop_does_besides_is_not_the_models(tmp_path, places):
    before = left_behind()
    Fit(tmp_path, **places)
    assert [record.model_flops for record in counts(tmp_path)] == [STEP]
    assert counts(tmp_path)[0].hardware_flops == STEP
    assert (counts(tmp_path)[0].lower_bound, counts(tmp_path)[0].uncounted) == (False, {})
    assert {*known(tmp_path)[2:]} == {STEP}
    assert left_behind() == before


class Pair(nn.Module):
    """Its parts are called, it is not."""

    def __init__(self):
        super().__init__()
        self.a, self.b = layer(), layer()

    def forward(self, x):
        raise AssertionError("nobody calls it")


def test_parts_of_a_model_that_is_not_called_itself_are_counted(tmp_path):
    model = Pair()
    Fit(tmp_path, model=model, last=a_product, loss=lambda batch: model.b(model.a(batch)).sum())
    assert {*known(tmp_path)[2:]} == {5 * PRODUCT}


def test_a_model_that_nobody_watches_is_counted_where_it_is_trained(tmp_path):
    """As the critic of a generator."""
    critic = nn.Linear(WIDTH, 2)

    def train_critic(fit):
        critic(fit.model(torch.ones(ROWS, WIDTH)).detach()).sum().backward()

    Fit(tmp_path, last=train_critic)
    (record,) = counts(tmp_path)
    assert record.model_flops == STEP + PRODUCT + 2 * (2 * ROWS * WIDTH * 2)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return torch.ones(WIDTH)


def collate(rows):
    multiply()
    return torch.stack(rows)


def test_products_in_collate_are_the_loaders(tmp_path):
    Fit(tmp_path, loader=DataLoader(Rows(), batch_size=ROWS, collate_fn=collate))
    assert {*known(tmp_path)[2:]} == {STEP}


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
def test_what_callbacks_of_transformers_do_is_not_the_models(tmp_path, do):
    arguments = tiny.training_arguments(tmp_path, max_steps=4)
    tiny.trainer(arguments, PerfCallback(), Doing(do), train_dataset=tiny.Tokens(32, mask=False)).train()
    assert {*known(tmp_path)[2:]} == {truth(tiny.llama(), ids(4, 16))}


class Accumulating(TrainerCallback):
    trainer = None

    def on_substep_end(self, args, state, control, **_):
        self.trainer.evaluate()


def test_an_evaluation_between_micro_batches_is_not_counted(tmp_path):
    arguments = tiny.training_arguments(tmp_path, max_steps=3, gradient_accumulation_steps=2)
    between = Accumulating()
    data = {"train_dataset": tiny.Tokens(32, mask=False), "eval_dataset": tiny.Tokens(8, mask=False)}
    between.trainer = tiny.trainer(arguments, PerfCallback(), between, **data)
    between.trainer.train()
    assert {*known(tmp_path)[2:]} == {2 * truth(tiny.llama(), ids(4, 16))}


def evaluating(kinds, *, gradients):
    class Evaluating(kinds.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            if batch_idx < 2:
                module.eval()
                with torch.set_grad_enabled(gradients):
                    for _ in range(10):
                        module.net(torch.ones(16, sparks.WIDTH))
                module.train()

    return Evaluating()


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("kind", ["Automatic", "Manual"])
def test_what_callbacks_of_lightning_do_is_not_the_models(tmp_path, kind, gradients):
    kinds = sparks.tree()
    callbacks = kinds.PerfCallback(), evaluating(kinds, gradients=gradients)
    trainer = sparks.trainer(tmp_path, *callbacks, max_steps=4 if kind == "Automatic" else 8)
    trainer.fit(getattr(kinds, kind)(), sparks.loader())
    product = 2 * 4 * sparks.WIDTH**2
    each = 2 * product if kind == "Automatic" else 2 * 5 * product  # two layers, forward and backward twice
    assert {*known(tmp_path)[2:]} == {each}


class Own(Trainer):
    """Trains in a way of its own, which announces no forward."""

    def training_step(self, model, inputs, *_):
        loss = model(**inputs).loss
        self.accelerator.backward(loss)
        return loss.detach()


def test_a_trainer_that_announces_no_forward_is_counted_one_step_later(tmp_path):
    arguments = tiny.training_arguments(tmp_path, max_steps=5)
    tiny.trainer(arguments, PerfCallback(), kind=Own, train_dataset=tiny.Tokens(32, mask=False)).train()
    true = truth(tiny.llama(), ids(4, 16))
    found = known(tmp_path)[2:]
    assert found == pytest.approx([true] * len(found), rel=1e-3)  # angles of positions are made without gradients
    assert found
    assert [record.step for record in counts(tmp_path)] == [3]
