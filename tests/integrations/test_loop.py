"""What the loop door counts, logs and leaves behind, and what it gets along with."""

import copy
import gc
import pickle
import threading
import weakref
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from forked import run
from metric_keys import LOGGED
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, IterableDataset
from trainings.models import Tokens, llama
from trainings.runs import records, steps

from perf_callbacks import PerfConfig
from perf_callbacks.kernel.records.fit_records import Gc, Row, Run, Steps, Summary as SummaryRecord
from perf_callbacks.loop import measure

FLOPS_OF_A_ROW = 6 * 8 * (8 + 1) - 2 * 8 * 8
"""Of `mlp`: six per weight, without the gradient of the input."""
STAGES = ("data", "forward", "backward", "optimizer", "gc", "other")
FORKED = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))


def pairs(count, rows=4):
    return [(torch.ones(rows, 8), torch.ones(rows, 1)) for _ in range(count)]


def squared_error(model, batch):
    inputs, targets = batch
    return (model(inputs) - targets).square().mean()


def loss_of_tokens(model, batch):
    return model(**batch).loss


def train(directory, loader, *, model=None, loss=squared_error, after_step=lambda _: None, **config):
    """Measure one pass over the loader."""
    model = mlp() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
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


@pytest.mark.parametrize(("mask", "useful"), [(True, 2 * 16 + 2 * 5), (False, None)])
def test_useful_tokens_are_those_that_the_mask_keeps(tmp_path, mask, useful):
    data = rows_of_tokens(rows=8, lengths=(16, 5), mask=mask)
    perf = train(tmp_path, data, model=llama(), loss=loss_of_tokens, flops="off")
    assert perf.summary.included_useful_tokens == useful


def test_batches_without_token_ids_have_samples_and_no_tokens(tmp_path):
    rows = []
    perf = train(tmp_path, pairs(3), after_step=lambda perf: rows.append(perf.row()))
    assert amounts(tmp_path) == [(4, None)] * 3
    assert (perf.summary.samples, perf.summary.tokens) == (12, None)
    assert {key for key in rows[-1] if "samples" in key or "tokens" in key} == {"perf/samples_per_second"}


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


@pytest.mark.parametrize("sizes", [(3, 4, 3, 4, 3), (3, 4, 4, 3, 3)])
def test_a_shape_of_the_first_step_alone_is_counted_when_it_comes_again(tmp_path, sizes):
    train(tmp_path, [pair for rows in sizes for pair in pairs(1, rows)])
    again = sizes.index(3, 1) + 1
    excluded = {step["step"]: step["excluded"] for step in steps(tmp_path) if step["excluded"]}
    assert excluded == {1: "first", 2: "counted", again: "recounted"}
    assert [step["model_flops"] for step in steps(tmp_path)[1:]] == [rows * FLOPS_OF_A_ROW for rows in sizes[1:]]


def test_the_loader_is_in_all_other_respects_the_users_own(tmp_path):
    loader = rows_of_tokens(rows=10)
    perf = measure(model=mlp(), optimizer=torch.optim.SGD([torch.ones(1)]), loader=loader)
    assert len(perf.loader) == 3
    assert perf.loader.batch_size == 4
    assert perf.loader.dataset is loader.dataset
    assert perf.loader.sampler is loader.sampler
    with pytest.raises(AttributeError, match="'DataLoader' object has no attribute 'missing'"):
        _ = perf.loader.missing


def test_copies_of_the_measured_loader_are_of_the_loader(tmp_path):
    model, loader = mlp(), DataLoader(torch.ones(6, 8), batch_size=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with measure(model=model, optimizer=optimizer, loader=loader, config=PerfConfig(output_dir=str(tmp_path))) as perf:
        for again in (copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))):
            other = again(perf.loader)
            assert type(other) is DataLoader
            assert other is not loader
            assert [len(batch) for batch in other] == [2, 2, 2]


def test_a_generator_has_no_length_inside_the_block_either():
    perf = measure(model=mlp(), optimizer=torch.optim.SGD([torch.ones(1)]), loader=generated())
    with pytest.raises(TypeError, match=r"'generator' .*len\(\)"):
        len(perf.loader)


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


def test_an_optimizer_whose_step_calls_its_base_class_makes_one_step(tmp_path):
    torch.optim.SGD(mlp().parameters())  # torch hooks `step` of every class that was made once
    model = mlp()
    optimizer = Wrapping(model.parameters(), lr=0.1)
    config = PerfConfig(output_dir=str(tmp_path))
    with measure(model=model, optimizer=optimizer, loader=pairs(3), config=config) as perf:
        for batch in perf.loader:
            squared_error(model, batch).backward()
            optimizer.step()
    assert amounts(tmp_path) == [(4, None)] * 3


def test_a_closure_that_runs_the_model_many_times_is_one_step(tmp_path):
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    config = PerfConfig(output_dir=str(tmp_path))
    with measure(model=model, optimizer=optimizer, loader=pairs(3), config=config) as perf:
        for batch in perf.loader:

            def closure(batch=batch):
                optimizer.zero_grad()
                loss = squared_error(model, batch)
                loss.backward()
                return loss

            optimizer.step(closure)
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


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, inputs):
        return self.second(self.first(inputs).relu())


def losses(model, prepare=lambda model: model, around=nullcontext):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    with around(model=model, optimizer=optimizer, loader=pairs(3)) as perf:
        called = prepare(model)
        for batch in perf.loader:
            found.append(squared_error(called, batch))
            found[-1].backward()
            optimizer.step()
            optimizer.zero_grad()
    return [loss.item() for loss in found]


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
def test_losses_are_bitwise_those_of_the_plain_model(tmp_path, before, inside):
    torch._dynamo.reset()
    around = partial(measure, config=PerfConfig(output_dir=str(tmp_path)))
    model = (before or (lambda model: model))(Network())
    assert losses(model, inside or (lambda model: model), around) == losses(Network(), around=Unmeasured)
    assert len(steps(tmp_path)) == 3


class Unmeasured(nullcontext):
    def __init__(self, *, model, optimizer, loader):
        super().__init__(self)
        self.loader = loader


def test_the_optimizer_can_be_saved_and_copied_while_it_is_measured(tmp_path):
    model = Network()
    optimizer = torch.optim.AdamW(model.parameters())
    config = PerfConfig(output_dir=str(tmp_path))
    with measure(model=model, optimizer=optimizer, loader=pairs(2), config=config) as perf:
        for batch in perf.loader:
            squared_error(model, batch).backward()
            optimizer.step()
            for other in (pickle.loads(pickle.dumps(optimizer)), copy.deepcopy(optimizer)):
                assert str(other.state_dict()) == str(optimizer.state_dict())
                other.step()
                other.zero_grad()
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
    model = mlp()
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
    model, data = mlp(), pairs(3)
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
