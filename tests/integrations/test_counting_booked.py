"""Only training work is counted: what else runs in the counted step is not the model's."""

from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from counted import counts, ids, known, left_behind, truth
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


def layer():
    torch.manual_seed(0)
    return nn.Linear(WIDTH, WIDTH)


def batches(steps=4):
    return [torch.ones(ROWS, WIDTH)] * steps


def multiply():
    return torch.ones(64, 64) @ torch.ones(64, 64)


class Fit:
    """A plain loop that has something else to do at four places."""

    def __init__(self, directory, *, model=None, steps=4, loader=None, accumulation=1, **places):
        self.model = layer() if model is None else model
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        config = PerfConfig(output_dir=str(directory), gc="off")
        do = {name: places.get(name, lambda _: None) for name in ("first", "forwards", "backwards", "last")}
        with measure(
            model=self.model, optimizer=optimizer, loader=loader or batches(steps * accumulation), config=config
        ) as perf:
            for number, batch in enumerate(perf.loader):
                do["first"](self)
                loss = places.get("loss", self.loss)(batch)
                do["forwards"](self)
                loss.backward()
                do["backwards"](self)
                if (number + 1) % accumulation == 0:
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


@torch.no_grad()
def a_pass_in_training_mode(fit):
    fit.model(torch.ones(100, WIDTH))


@pytest.mark.parametrize(
    "places",
    [
        {"first": a_product, "last": a_product, "backwards": a_product},
        {"first": its_weights, "last": its_weights, "backwards": its_weights},
        {"first": their_norm, "forwards": their_norm, "backwards": their_norm, "last": their_norm},
        {"last": a_sample},
        {"last": a_pass_in_training_mode},
    ],
    ids=["logging", "weights", "norms", "sampling", "sampling in training mode"],
)
def test_what_a_loop_does_besides_is_not_the_models(tmp_path, places):
    before = left_behind()
    Fit(tmp_path, **places)
    assert [record.model_flops for record in counts(tmp_path)] == [STEP]
    assert counts(tmp_path)[0].hardware_flops == STEP
    assert (counts(tmp_path)[0].lower_bound, counts(tmp_path)[0].uncounted) == (False, {})
    assert {*known(tmp_path)[2:]} == {STEP}
    assert left_behind() == before


@pytest.mark.parametrize(("place", "lower_bound"), [("first", True), ("forwards", False), ("last", False)])
def test_a_teacher_before_the_model_makes_a_lower_bound(tmp_path, place, lower_bound):
    teacher = layer().requires_grad_(requires_grad=False).eval()

    @torch.no_grad()
    def teach(_):
        teacher(torch.ones(ROWS, WIDTH))

    Fit(tmp_path, **{place: teach})
    (record,) = counts(tmp_path)
    assert record.lower_bound is lower_bound
    assert record.model_flops == STEP + PRODUCT * (place == "forwards")
    assert [*record.uncounted] == ["Linear without gradients"] * lower_bound


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_teacher_of_later_steps_makes_a_lower_bound_from_there_on(tmp_path, monkeypatch, gradients, accumulation):
    """It is frozen, so its result requires no gradients in either case."""
    monkeypatch.setattr(fingerprint, "compiles", lambda: False)  # what an earlier test has compiled
    teacher = layer().requires_grad_(requires_grad=False).eval()

    def teach(fit):
        fit.batches = getattr(fit, "batches", -1) + 1
        if fit.batches in {4 * accumulation, 5 * accumulation}:
            with torch.set_grad_enabled(gradients):
                teacher(torch.ones(ROWS, WIDTH))

    Fit(tmp_path, first=teach, steps=12, accumulation=accumulation)
    records = counts(tmp_path)
    assert [record.step for record in records] == [2, 2, 11]
    assert [record.lower_bound for record in records] == [False, True, True]
    assert [[*record.uncounted] for record in records[1:]] == [["Linear without gradients"]] * 2


@pytest.mark.parametrize("sampling", [False, True])
def test_passes_in_training_mode_between_accelerate_steps_are_not_counted(tmp_path, sampling):
    accelerator = Accelerator(cpu=True)
    perf = attach(accelerator, PerfConfig(output_dir=str(tmp_path), gc="off"))
    model = layer()
    loader = DataLoader(torch.ones(8 * ROWS, WIDTH), ROWS)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), loader)
    for batch in loader:
        accelerator.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        if sampling:
            a_pass_in_training_mode(SimpleNamespace(model=model))
    perf.close()
    assert {*known(tmp_path)[2:]} == {STEP}
    assert not counts(tmp_path)[0].lower_bound


def test_a_generator_that_runs_again_for_its_critic_makes_a_lower_bound(tmp_path):
    """No batch is fetched between its pass without gradients and the critic's backward."""
    critic = nn.Linear(WIDTH, 2)

    def train_critic(fit):
        with torch.no_grad():
            fake = fit.model(torch.ones(ROWS, WIDTH))
        critic(fake).sum().backward()

    Fit(tmp_path, last=train_critic)
    (record,) = counts(tmp_path)
    assert (record.lower_bound, [*record.uncounted]) == (True, ["Linear without gradients"])


@pytest.mark.parametrize("loader", [True, False])
def test_a_model_checkpointed_as_a_whole_with_reentry_runs_its_forward(tmp_path, loader):
    model = layer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    config = PerfConfig(output_dir=str(tmp_path), gc="off")
    with measure(model=model, optimizer=optimizer, loader=batches() if loader else None, config=config) as perf:
        for batch in perf.loader if loader else batches():
            x = batch.clone().requires_grad_()
            checkpoint(model, x, use_reentrant=True).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    (record,) = counts(tmp_path)
    assert (record.model_flops, record.hardware_flops, record.lower_bound) == (3 * PRODUCT, 4 * PRODUCT, False)


def test_a_learned_filter_outside_of_any_module_is_counted(tmp_path):
    stem = nn.Parameter(torch.eye(WIDTH))

    def loss(batch):
        (stem @ stem).sum()  # no backward goes through this one
        return fit.model(batch @ stem).square().mean()

    fit = SimpleNamespace(model=layer())
    Fit(tmp_path, model=fit.model, loss=loss)
    assert {*known(tmp_path)[2:]} == {5 * PRODUCT}


@pytest.mark.parametrize("sampling", [False, True])
def test_a_loop_without_a_loader_that_samples_has_a_lower_bound(tmp_path, sampling):
    model = layer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with measure(model=model, optimizer=optimizer, config=PerfConfig(output_dir=str(tmp_path), gc="off")):
        for _ in range(4):
            with torch.no_grad():
                Pair().a(torch.ones(ROWS, WIDTH)) if sampling else their_norm(SimpleNamespace(model=model))
            model(torch.ones(ROWS, WIDTH)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert [record.lower_bound for record in counts(tmp_path)] == [sampling]


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


def test_a_model_that_collates_makes_a_lower_bound(tmp_path):
    encoder = models.llama().eval()

    def encode(rows):
        with torch.no_grad():
            encoder(input_ids=torch.stack([row["input_ids"] for row in rows]))
        return torch.utils.data.default_collate(rows)

    arguments = models.training_arguments(tmp_path, max_steps=4)
    data = {"train_dataset": models.Tokens(32, mask=False), "data_collator": encode}
    models.trainer(arguments, PerfCallback(), **data).train()
    (record,) = counts(tmp_path)
    assert [*record.uncounted] == ["LlamaForCausalLM without gradients"]


class Accumulating(TrainerCallback):
    trainer = None

    def on_substep_end(self, args, state, control, **_):
        self.trainer.evaluate()


def test_an_evaluation_between_micro_batches_is_not_counted(tmp_path):
    arguments = models.training_arguments(tmp_path, max_steps=3, gradient_accumulation_steps=2)
    between = Accumulating()
    data = {"train_dataset": models.Tokens(32, mask=False), "eval_dataset": models.Tokens(8, mask=False)}
    between.trainer = models.trainer(arguments, PerfCallback(), between, **data)
    between.trainer.train()
    assert {*known(tmp_path)[2:]} == {2 * truth(models.llama(), ids(4, 16))}


def evaluating(kinds, *, gradients):
    class Evaluating(kinds.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            if batch_idx < 2:
                module.eval()
                with torch.set_grad_enabled(gradients):
                    for _ in range(10):
                        module.net(torch.ones(16, lightning_kit.WIDTH))
                module.train()

    return Evaluating()


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("kind", ["Automatic", "Manual"])
def test_what_callbacks_of_lightning_do_is_not_the_models(tmp_path, kind, gradients):
    kinds = lightning_kit.tree()
    callbacks = kinds.PerfCallback(), evaluating(kinds, gradients=gradients)
    trainer = lightning_kit.trainer(tmp_path, *callbacks, max_steps=4 if kind == "Automatic" else 8)
    trainer.fit(getattr(kinds, kind)(), lightning_kit.loader())
    product = 2 * 4 * lightning_kit.WIDTH**2
    each = 2 * product if kind == "Automatic" else 2 * 5 * product  # two layers, forward and backward twice
    assert {*known(tmp_path)[2:]} == {each}


class Own(Trainer):
    """Trains in a way of its own, which announces no forward."""

    def training_step(self, model, inputs, *_):
        loss = model(**inputs).loss
        self.accelerator.backward(loss)
        return loss.detach()


def test_a_trainer_that_announces_no_forward_is_counted_one_step_later(tmp_path):
    arguments = models.training_arguments(tmp_path, max_steps=5)
    models.trainer(arguments, PerfCallback(), kind=Own, train_dataset=models.Tokens(32, mask=False)).train()
    true = truth(models.llama(), ids(4, 16))
    found = known(tmp_path)[2:]
    assert found == pytest.approx([true] * len(found), rel=1e-3)  # angles of positions are made without gradients
    assert found
    assert [record.step for record in counts(tmp_path)] == [3]
