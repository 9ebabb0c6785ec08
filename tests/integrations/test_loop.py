"""A plain loop: amounts and rows, its loader, optimizer and model as they were, stages of models in their own ways."""

import copy
import gc
import pickle
import threading
import weakref
from contextlib import nullcontext
from functools import partial
from io import BytesIO

import pytest
import torch
from jobs import run
from metric_keys import LOGGED
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, IterableDataset
from trainings.models import Model, Optimizer, Tokens, llama
from trainings.plain_loop import LoopTraining
from trainings.runs import records, steps
from trainings.sleep import Sleep, assert_in_stage, fit

from perf_callbacks import PerfConfig
from perf_callbacks.kernel.records.fit_records import Gc, Row, Run, Steps, Summary as SummaryRecord
from perf_callbacks.loop import measure

STAGES = ("data", "forward", "backward", "optimizer", "gc", "other")

FORKED = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, inputs):
        return self.second(self.first(inputs).relu())


def pairs(count, rows=4):
    return [(torch.ones(rows, 8), torch.ones(rows, 1)) for _ in range(count)]


def squared_error(model, batch):
    inputs, targets = batch
    return (model(inputs) - targets).square().mean()


def loss_of_tokens(model, batch):
    return model(**batch).loss


def train(directory, loader, *, model=None, optimizer=None, loss=squared_error, after_step=lambda _: None, **config):
    """Measure one pass over the loader."""
    model = Network() if model is None else model
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    config = PerfConfig(output_dir=str(directory), **config)
    with measure(model=model, optimizer=optimizer, loader=loader, config=config) as perf:
        for batch in perf.loader:
            loss(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            after_step(perf)
    return perf


def amounts(directory, **which):
    return [(step["samples"], step["tokens"]) for step in steps(directory, **which)]


def rows_of_tokens(**data):
    return DataLoader(Tokens(**data), batch_size=4)


class Stream(IterableDataset):
    def __iter__(self):
        yield from (Tokens()[index] for index in range(10))


def generated():
    for start in (0, 4, 8):
        yield torch.utils.data.default_collate([Tokens()[index] for index in range(start, min(start + 4, 10))])


@FORKED
@pytest.mark.parametrize(
    ("loader", "expected"),
    [
        (lambda: DataLoader(Tokens(10), batch_size=4, num_workers=2), [(4, 64), (4, 64), (2, 32)]),
        (lambda: DataLoader(Stream(), batch_size=4), [(4, 64), (4, 64), (2, 32)]),
        (lambda: list(generated()), [(4, 64), (4, 64), (2, 32)]),
        (generated, [(4, 64), (4, 64), (2, 32)]),
    ],
    ids=["two workers", "stream", "list", "generator"],
)
def test_samples_and_tokens_are_exact(tmp_path, loader, expected):
    perf = train(tmp_path, loader(), model=llama(), loss=loss_of_tokens, flops="off")
    assert amounts(tmp_path) == expected
    samples, tokens = (sum(column) for column in zip(*expected, strict=True))
    summary = perf.summary
    assert (summary.samples, summary.tokens, summary.total_samples, summary.total_tokens) == (samples, tokens) * 2
    assert (summary.included_samples, summary.included_tokens) == (samples - expected[0][0], tokens - expected[0][1])


def test_a_row_is_ratios_of_sums_of_the_steps_since_the_row_before(tmp_path):
    rows = []

    def log(perf):
        if perf.state()["step"] in {1, 3, 7}:
            rows.append(perf.row())
            assert perf.row() == {}

    data = rows_of_tokens(rows=28, lengths=(16, 5))
    perf = train(tmp_path, data, model=llama(), loss=loss_of_tokens, after_step=log)
    done = steps(tmp_path)
    assert rows[0] == {}
    for row, included in zip(rows[1:], [done[2:3], done[3:7]], strict=True):
        seconds = sum(step["step_time"] for step in included)
        expected = {"perf/step_time": seconds / len(included)}
        for stage in STAGES:
            expected[f"perf/{stage}_time"] = sum(step[f"{stage}_time"] for step in included) / len(included)
        for name, amount in {"samples": 4, "tokens": 64, "useful_tokens": 42}.items():
            expected[f"perf/{name}_per_second"] = amount * len(included) / seconds
        flops = sum(step["model_flops"] for step in included)
        expected["perf/tflops"] = flops / seconds / 1e12
        expected["perf/mfu"] = flops / seconds / perf.summary.flops.peak_flops_per_second
        assert {key: row[key] for key in expected} == pytest.approx(expected, rel=1e-4, abs=1e-6)
        assert row.keys() == LOGGED
    journaled = [(record.step, record.metrics) for record in records(tmp_path, Row)]
    assert [
        (step, rows.items() <= metrics.items()) for (step, metrics), rows in zip(journaled, rows[1:], strict=True)
    ] == [(3, True), (7, True)]


FLOPS_OF_A_ROW = 6 * 8 * (8 + 1) - 2 * 8 * 8
"""Of the network: six per weight, without the gradient of the input."""


@pytest.mark.parametrize("sizes", [(3, 4, 3, 4, 3), (3, 4, 4, 3, 3)])
def test_a_shape_of_the_first_step_alone_is_counted_when_it_comes_again(tmp_path, sizes):
    train(tmp_path, [pair for rows in sizes for pair in pairs(1, rows)])
    again = sizes.index(3, 1) + 1
    excluded = {step["step"]: step["excluded"] for step in steps(tmp_path) if step["excluded"]}
    assert excluded == {1: "first", 2: "counted", again: "recounted"}
    assert [step["model_flops"] for step in steps(tmp_path)[1:]] == [rows * FLOPS_OF_A_ROW for rows in sizes[1:]]


def test_the_loader_is_in_all_other_respects_the_users_own(tmp_path):
    loader = rows_of_tokens(rows=10)
    perf = measure(model=Network(), optimizer=torch.optim.SGD([torch.ones(1)]), loader=loader)
    assert len(perf.loader) == 3
    assert perf.loader.batch_size == 4
    assert perf.loader.dataset is loader.dataset
    assert perf.loader.sampler is loader.sampler
    with pytest.raises(AttributeError, match="'DataLoader' object has no attribute 'missing'"):
        _ = perf.loader.missing
    perf = measure(model=Network(), optimizer=torch.optim.SGD([torch.ones(1)]), loader=generated())
    with pytest.raises(TypeError, match=r"'generator' .*len\(\)"):
        len(perf.loader)


def test_copies_of_the_measured_loader_are_of_the_loader(tmp_path):
    model, loader = Network(), DataLoader(torch.ones(6, 8), batch_size=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with measure(model=model, optimizer=optimizer, loader=loader, config=PerfConfig(output_dir=str(tmp_path))) as perf:
        for duplicate in (copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))):
            other = duplicate(perf.loader)
            assert type(other) is DataLoader
            assert other is not loader
            assert [len(batch) for batch in other] == [2, 2, 2]


def test_nested_measurements_do_not_mix(tmp_path):
    inner = []

    def train_another(_perf):
        inner.append(train(tmp_path / "inner", pairs(2, rows=3)))

    outer = train(tmp_path / "outer", pairs(3), after_step=train_another)
    assert (outer.summary.steps, outer.summary.samples) == (3, 12)
    assert [(perf.summary.steps, perf.summary.samples) for perf in inner] == [(2, 6)] * 3


class ScheduledCollection(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        for _ in range(300):  # the journal holds back 256 records
            gc.collect(0)
        return torch.ones(8), torch.ones(1)


@FORKED
def test_a_forked_worker_neither_writes_nor_warns_of_its_own_garbage(tmp_path, capfd):
    loader = DataLoader(ScheduledCollection(), batch_size=4, num_workers=2, multiprocessing_context="fork")
    train(tmp_path, loader, gc="observe")
    assert [record.automatic for record in records(tmp_path, Gc) if not record.automatic] == []
    assert (len(records(tmp_path, Run)), len(records(tmp_path, SummaryRecord))) == (1, 1)
    assert capfd.readouterr().err == ""


class Wrapping(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)


def test_an_optimizer_that_calls_its_base_class_makes_a_single_step(tmp_path):
    torch.optim.SGD(Network().parameters())  # torch hooks `step` of every class that was made once
    model = Network()
    train(tmp_path, pairs(3), model=model, optimizer=Wrapping(model.parameters(), lr=0.1))
    assert amounts(tmp_path) == [(4, None)] * 3


def eagerly(model):
    return torch.compile(model, backend="eager", fullgraph=True)


def compile_in_place(model):
    model.compile(backend="eager", fullgraph=True)
    return model


class Checkpointed(nn.Module):
    def __init__(self, inner, *, use_reentrant):
        super().__init__()
        self.inner, self.use_reentrant = inner, use_reentrant

    def forward(self, inputs):
        return checkpoint(self.inner, inputs.requires_grad_(), use_reentrant=self.use_reentrant)


def losses(model, prepare=lambda model: model, around=nullcontext):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    history = []
    with around(model=model, optimizer=optimizer, loader=pairs(3)) as perf:
        called = prepare(model)
        for batch in perf.loader:
            history.append(squared_error(called, batch))
            history[-1].backward()
            optimizer.step()
            optimizer.zero_grad()
    return [loss.item() for loss in history]


class Unmeasured(nullcontext):
    def __init__(self, *, model, optimizer, loader):
        super().__init__(self)
        self.loader = loader


@pytest.mark.parametrize(
    ("before", "inside"),
    [
        (eagerly, None),
        (compile_in_place, None),
        (None, eagerly),
        (None, compile_in_place),
        (partial(Checkpointed, use_reentrant=True), None),
        (partial(Checkpointed, use_reentrant=False), None),
    ],
    ids=["compiled", "compiled in place", "inside", "in place inside", "reentrant", "non-reentrant"],
)
def test_losses_are_bitwise_the_losses_of_the_plain_model(tmp_path, before, inside):
    torch._dynamo.reset()
    around = partial(measure, config=PerfConfig(output_dir=str(tmp_path)))
    model = (before or (lambda model: model))(Network())
    assert losses(model, inside or (lambda model: model), around) == losses(Network(), around=Unmeasured)
    assert len(steps(tmp_path)) == 3


def test_the_optimizer_can_be_saved_and_copied_while_it_is_measured(tmp_path):
    model = Network()
    optimizer = torch.optim.AdamW(model.parameters())

    def copied(_perf):
        for other in (pickle.loads(pickle.dumps(optimizer)), copy.deepcopy(optimizer)):
            assert str(other.state_dict()) == str(optimizer.state_dict())
            other.step()
            other.zero_grad()

    perf = train(tmp_path, pairs(2), model=model, optimizer=optimizer, after_step=copied)
    assert perf.summary.steps == 2


@pytest.mark.slow
def test_a_model_saved_whole_inside_the_block_loads_without_the_package(tmp_path):
    path = tmp_path / "model.pt"
    with measure(
        model=(model := nn.Linear(8, 1)),
        optimizer=torch.optim.SGD(model.parameters()),
        loader=(),
        config=PerfConfig(output_dir=str(tmp_path)),
    ):
        torch.save(model, path)
    (script := tmp_path / "load.py").write_text(
        "import sys, torch\n"
        "sys.modules['perf_callbacks'] = None\n"
        f"model = torch.load({str(path)!r}, weights_only=False)\n"
        "print(model(torch.ones(2, 8)).shape)\n"
    )
    done = run(script, imports=("torch._dynamo",), directory=tmp_path)
    assert done == (0, "torch.Size([2, 1])\n", "")


def test_a_loop_without_a_step_leaves_an_empty_run(tmp_path):
    perf = train(tmp_path, ())
    assert (perf.summary.steps, perf.row(), records(tmp_path, Steps)) == (0, {}, [])


def test_a_batch_is_freed_when_the_loop_lets_go_of_it(tmp_path):
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    alive = []
    config = PerfConfig(output_dir=str(tmp_path))
    with measure(
        model=model, optimizer=optimizer, loader=({"x": torch.ones(2)} for _ in range(3)), config=config
    ) as perf:
        for batch in perf.loader:
            watched = weakref.ref(batch["x"])
            del batch
            alive.append(watched() is not None)
    assert alive == [False] * 3


def test_a_thread_that_prefetches_is_counted_and_not_timed(tmp_path):
    model, data = Network(), pairs(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with measure(model=model, optimizer=optimizer, loader=data, config=PerfConfig(output_dir=str(tmp_path))) as perf:
        fetched = []
        thread = threading.Thread(target=lambda: fetched.extend(perf.loader))
        thread.start()
        thread.join()
        for batch in fetched:
            squared_error(model, batch).backward()
            optimizer.step()
    assert perf.summary.samples == sum(len(batch[0]) for batch in data)
    assert {"data_time", "optimizer_time"} & set(perf.summary.stage_seconds) == {"optimizer_time"}


@pytest.fixture
def sleep(clock):
    return Sleep(clock.sleep)


def assert_slept_in(stage, directory, sleep, place, **options):
    """Train a loop that sleeps at a place, and expect each sleep in one stage."""
    assert_in_stage(stage, fit(directory, LoopTraining, place, sleep, steps=7, **options), sleep)


class Recomputed(Model):
    """A model with a place in its recomputation."""

    def forward(self, inputs):
        if torch._C._current_graph_task_id() < 0:
            return super().forward(inputs)
        self.at("recomputation")
        return super().forward(inputs)


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("whole", [True, False], ids=["whole model", "a block"])
@pytest.mark.parametrize(
    ("place", "stage"),
    [("the model", "forward"), ("recomputation", "backward"), ("a gradient", "backward"), ("clipping", "optimizer")],
)
def test_recomputation_is_backward(tmp_path, sleep, place, stage, whole, use_reentrant):  # noqa: PLR0917 crossed
    options = {"model": lambda at: Checkpointed(Recomputed(at), use_reentrant=use_reentrant)}
    if whole:
        options = {"model": Recomputed, "call": partial(checkpoint, use_reentrant=use_reentrant)}
    assert_slept_in(stage, tmp_path, sleep, place, **options)


class Traceable(nn.Module):
    """A model that compiles and pickles."""

    def __init__(self, _at=None):
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, inputs):
        return self.linear(inputs)


@pytest.mark.parametrize("way", ["wrapped", "in place before", "in place inside the block"])
def test_the_call_of_a_compiled_model_is_forward(tmp_path, sleep, way):
    def backend(graph, _inputs):  # as "eager", with a sleep
        def run(*args):
            sleep()
            return graph.forward(*args)

        return run

    torch._dynamo.reset()
    compiled_here = []

    def compiled(_at):
        model = Traceable()
        if way == "in place before":
            model.compile(backend=backend, fullgraph=True)
        return torch.compile(model, backend=backend, fullgraph=True) if way == "wrapped" else model

    def call(model, inputs):
        if way == "in place inside the block" and not compiled_here:
            compiled_here.append(model.compile(backend=backend, fullgraph=True))
        return model(inputs)

    assert_slept_in("forward", tmp_path, sleep, None, model=compiled, call=call)


class Closed(Optimizer):
    """An optimizer that calls its closure."""

    def step(self, closure):
        closure()
        super().step()


def test_the_work_after_the_closure_of_an_optimizer_is_optimizer(tmp_path, sleep):
    training = sleep.training = LoopTraining(tmp_path, "the optimizer", sleep)
    model = training.model
    optimizer, batches = Closed(model, training.at), [torch.ones(2, 4)] * 7
    config = PerfConfig(output_dir=str(tmp_path), flops="off")
    with measure(model=model, optimizer=optimizer, loader=batches, config=config) as perf:
        for inputs in perf.loader:

            def closure(inputs=inputs):
                optimizer.zero_grad()
                model(inputs).mean().backward()

            optimizer.step(closure)
            training.step += 1
    assert_in_stage("optimizer", {step["step"]: step for step in steps(tmp_path)}, sleep)


def through_a_file(model):
    file = BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def attribute_by_attribute(model):
    other = type(model).__new__(type(model))
    other.__dict__.update(model.__dict__)
    other.linear = copy.deepcopy(model.linear)
    other._modules = {"linear": copy.deepcopy(model.linear)}
    return other


@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)), through_a_file, attribute_by_attribute],
    ids=["deepcopy", "pickle", "torch.save", "attribute by attribute"],
)
@pytest.mark.parametrize("context", [nullcontext, torch.no_grad], ids=["training", "evaluating"])
def test_a_copy_of_the_model_is_not_the_model(tmp_path, monkeypatch, sleep, duplicate, context):
    forward = Traceable.forward

    def slow(self, inputs):
        if hasattr(self, "copied"):
            sleep()
        return forward(self, inputs)

    monkeypatch.setattr(Traceable, "forward", slow)

    def average(_step):
        other = duplicate(sleep.training.model)
        other.copied = True
        other.train(context is nullcontext)
        with context():
            other(torch.ones(2, 4))

    assert_slept_in("other", tmp_path, sleep, None, model=Traceable, after_step=average)


def train_quietly(model):
    model(torch.ones(2, 4)).mean().backward()


def predict(model):
    with torch.no_grad():
        model(torch.ones(2, 4))


@pytest.mark.parametrize(
    ("work", "same"),
    [(train_quietly, False), (predict, False), (predict, True)],
    ids=["training another model", "predicting with another model", "predicting with the same model"],
)
def test_another_thread_does_not_disturb_the_stages(tmp_path, sleep, work, same):
    done, models = threading.Event(), []

    def make(_at):
        models.append(Traceable())
        return models[0]

    def keep_working():
        other = None if same else Traceable()
        while not done.wait(0.001):
            if models:
                work(models[0] if same else other)

    thread = threading.Thread(target=keep_working)
    thread.start()
    try:
        assert_slept_in("data", tmp_path, sleep, "the dataset", model=make)
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize(
    ("training", "context"), [(True, torch.no_grad), (False, nullcontext)], ids=["no gradients", "eval mode"]
)
def test_a_call_without_gradients_or_in_eval_mode_alone_is_forward(tmp_path, sleep, training, context):
    teacher = []

    def call(model, inputs):
        model.train(training)
        with context():
            teacher.append(model(inputs).shape)
        return model(inputs)

    class Slow(Traceable):
        def forward(self, inputs):
            sleep()
            return super().forward(inputs)

    assert_slept_in("forward", tmp_path, sleep, None, model=Slow, call=call)
    assert teacher


class Apart:
    """A loop, and another model and optimizer that it might use instead of those it tells of."""

    def __init__(self, directory):
        self.model, self.other = nn.Linear(2, 1), nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD([*self.model.parameters(), *self.other.parameters()], lr=0.1)
        self.another = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.batches, config = [torch.ones(4, 2)] * 6, PerfConfig(output_dir=str(directory), gc="off")
        self.perf = measure(model=self.model, optimizer=self.optimizer, loader=self.batches, config=config)

    def train(self, *, model=None, optimizer=None, batches=None):
        for batch in self.perf.loader if batches is None else batches:
            (model or self.model)(batch).sum().backward()
            (optimizer or self.optimizer).step()
            self.optimizer.zero_grad()


NO_BATCH = " and no batch: iterate over perf.loader"
TOLD = {
    "own loader": (lambda loop: loop.train(batches=loop.batches), "3 optimizer steps" + NO_BATCH),
    "own loader for a step": (lambda loop: loop.train(batches=loop.batches[:1]), "1 optimizer step" + NO_BATCH),
    "another model": (
        lambda loop: loop.train(model=loop.other),
        "3 optimizer steps, and the model given to measure() was never called",
    ),
    "another optimizer": (
        lambda loop: loop.train(optimizer=loop.another),
        "the loop was over without a step of the optimizer given to measure()",
    ),
    "as it should be": (lambda loop: loop.train(), None),
    "no steps at all": (lambda _loop: None, None),
}


@pytest.mark.parametrize(("body", "sentence"), TOLD.values(), ids=TOLD)
def test_a_loop_that_measures_nothing_is_told_once(tmp_path, caplog, body, sentence):
    loop = Apart(tmp_path)
    with loop.perf:
        body(loop)
    loop.train()
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == (sentence is not None), messages
    assert sentence is None or sentence in messages[0]


def test_a_loop_without_the_block_is_told_once(tmp_path, caplog):
    loop = Apart(tmp_path)
    loop.train()
    loop.train()
    (message,) = [record.getMessage() for record in caplog.records]
    assert "measures only inside of the with block" in message
