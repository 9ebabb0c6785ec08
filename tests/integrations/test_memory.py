"""Parts of memory against what is known of the model, and the use of the machine, second by second of the test."""

import gc
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from fake_watchdog import FakeWatchdog
from metric_keys import needing
from nvml_stub import INSTANCE, load, uuid
from torch import nn
from torch.optim import optimizer as optimizers
from torch.utils.checkpoint import checkpoint
from trainings import models
from trainings.doors import DOORS

from perf_callbacks import PerfConfig
from perf_callbacks.journal import Memory, Use
from perf_callbacks.kernel.fit import environment
from perf_callbacks.kernel.process.device_facts import Allocator, Features
from perf_callbacks.kernel.process.device_use import DeviceUse
from perf_callbacks.kernel.process.processes import Processes
from perf_callbacks.kernel.records.journal_file import read
from perf_callbacks.kernel.records.metric_table import GPU
from perf_callbacks.loop import measure
from perf_callbacks.memory import observer as memory, step_memory
from perf_callbacks.memory.use import GB
from perf_callbacks.transformers import PerfCallback

pytestmark = pytest.mark.usefixtures("accelerate_state", "nothing_compiled")

WIDTH, ROWS, LAYERS = 128, 64, 4
LAYER, RESULT = 4 * WIDTH * WIDTH, 4 * ROWS * WIDTH
"""Bytes of the weights of a layer, and of its result."""


@pytest.fixture
def nothing_compiled(monkeypatch):
    """Other tests of this process may have compiled something."""
    monkeypatch.setattr(step_memory, "anything_compiled", lambda: False)


def a_model():
    layers = [(nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU()) for _ in range(LAYERS)]
    return nn.Sequential(*[module for pair in layers for module in pair])


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.embed(ids))


class Wasteful(nn.Module):
    """Its forward makes and frees a tensor, twice."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, rows):
        large = rows.detach().repeat(100, 1)
        return self.layer(rows) + (large * 2).sum()


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = a_model()

    def forward(self, rows):
        for layer in self.layers:
            rows = checkpoint(layer, rows, use_reentrant=False)
        return rows


def train(directory, model, optimizer, batch, *, steps=4, after_step=lambda _: None, **config):
    with measure(
        model=model, optimizer=optimizer, loader=[batch] * steps, config=PerfConfig(output_dir=str(directory), **config)
    ) as perf:
        for step, rows in enumerate(perf.loader, 1):
            model(rows).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            after_step(step)
    return perf.summary


def recorded(directory, kind):
    return [entry.record for entry in read(directory) if isinstance(entry.record, kind)]


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adam(model):
    return torch.optim.AdamW(model.parameters())


def frozen(model):
    for layer in model[: LAYERS + 1]:
        layer.requires_grad_(requires_grad=False)
    return model


HALF = LAYERS // 2 * LAYER
ALL = LAYERS * LAYER
CASES = {
    # model, optimizer, batch: weights, gradients, state, activations
    "momentum": (a_model, sgd, None, (ALL, ALL, ALL, LAYERS * RESULT)),
    "adam": (a_model, adam, None, (ALL, ALL, 2 * ALL, LAYERS * RESULT)),
    # of the frozen half, only the result of the second layer is needed
    "frozen": (lambda: frozen(a_model()), adam, None, (ALL, ALL - 3 * LAYER, 2 * (ALL - 3 * LAYER), 2 * RESULT)),
    "tied": (Tied, sgd, torch.arange(ROWS), (LAYER, LAYER, LAYER, 2 * RESULT)),
    "bfloat16": (
        lambda: a_model().bfloat16(),
        adam,
        torch.ones(ROWS, WIDTH).bfloat16(),
        (ALL / 2, ALL / 2, ALL, LAYERS * RESULT / 2),
    ),
    # inputs of the layers and of the activation functions
    "checkpointed": (Checkpointed, sgd, None, (ALL, ALL, ALL, 2 * LAYERS * RESULT)),
}


@pytest.mark.parametrize("case", CASES)
def test_parts_are_those_that_the_model_is_known_to_have(tmp_path, case):
    make, optimizer, batch, truth = CASES[case]
    model = make()
    summary = train(tmp_path, model, optimizer(model), torch.ones(ROWS, WIDTH) if batch is None else batch)
    (parts,) = recorded(tmp_path, Memory)
    measured = parts.weights_gb, parts.gradients_gb, parts.optimizer_gb, parts.activations_gb
    assert measured == pytest.approx([size / GB for size in truth], rel=0.02)
    assert (parts.step, parts.device, parts.source, parts.context_gb) == (2, "cpu", "operations", None)
    assert parts.peak_gb >= parts.weights_gb + parts.optimizer_gb + parts.activations_gb
    assert summary.memory.parts_gb["activations"] == parts.activations_gb
    assert "context" not in summary.memory.parts_gb


def test_temporary_memory_is_what_is_made_and_freed(tmp_path):
    model = Wasteful()
    train(tmp_path, model, sgd(model), torch.ones(ROWS, WIDTH))
    (parts,) = recorded(tmp_path, Memory)
    assert parts.temporary_gb == pytest.approx(2 * 100 * RESULT / GB, rel=0.02)
    assert parts.peak_gb == pytest.approx(2 * 100 * RESULT / GB, rel=0.05)


def test_gradients_that_stay_are_counted_once(tmp_path):
    model = a_model()
    optimizer = sgd(model)
    zero = optimizer.zero_grad
    optimizer.zero_grad = lambda: zero(set_to_none=False)
    train(tmp_path, model, optimizer, torch.ones(ROWS, WIDTH))
    (parts,) = recorded(tmp_path, Memory)
    assert parts.gradients_gb == pytest.approx(ALL / GB)
    static = parts.weights_gb + parts.gradients_gb + parts.optimizer_gb + parts.activations_gb
    assert static <= parts.peak_gb <= static + parts.temporary_gb


class LargeForward(nn.Module):
    """Its forward makes and frees more than all gradients, and so has the peak of the step."""

    def __init__(self):
        super().__init__()
        self.layers = a_model()

    def forward(self, rows):
        result = self.layers(rows)
        return result + rows.detach().repeat(100, 1).sum()


@pytest.mark.parametrize(
    ("freed", "kept_in_forward"),
    [("after the step", 0), ("before the forward", 0), ("after the forward", ALL), ("by a closure", ALL)],
)
def test_gradients_that_the_forward_finds_count_in_its_peak(tmp_path, freed, kept_in_forward):
    model = LargeForward()
    optimizer = sgd(model)
    rows = torch.ones(ROWS, WIDTH)

    def closure():  # as in Lightning
        loss = model(rows).mean()
        optimizer.zero_grad()
        loss.backward()

    with measure(
        model=model, optimizer=optimizer, loader=[rows] * 4, config=PerfConfig(output_dir=str(tmp_path))
    ) as perf:
        for _ in perf.loader:
            if freed == "by a closure":
                optimizer.step(closure)
                continue
            if freed == "before the forward":
                optimizer.zero_grad()
            loss = model(rows).mean()
            if freed == "after the forward":
                optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if freed == "after the step":
                optimizer.zero_grad()
    (parts,) = recorded(tmp_path, Memory)
    assert (parts.weights_gb, parts.gradients_gb, parts.optimizer_gb) == pytest.approx([ALL / GB] * 3)
    assert parts.temporary_gb == pytest.approx(100 * RESULT / GB, rel=0.02)
    peak = 2 * ALL + kept_in_forward + LAYERS * RESULT + 100 * RESULT
    assert parts.peak_gb == pytest.approx(peak / GB, rel=0.02)


def test_gradients_that_a_closure_frees_and_makes_count_once(tmp_path):
    model = a_model()
    optimizer = sgd(model)
    rows = torch.ones(ROWS, WIDTH)

    def closure():
        loss = model(rows).mean()
        optimizer.zero_grad()
        loss.backward()

    with measure(
        model=model, optimizer=optimizer, loader=[rows] * 4, config=PerfConfig(output_dir=str(tmp_path))
    ) as perf:
        for _ in perf.loader:
            optimizer.step(closure)
    (parts,) = recorded(tmp_path, Memory)
    assert parts.gradients_gb == pytest.approx(ALL / GB)
    assert parts.peak_gb == pytest.approx((3 * ALL + (LAYERS + 1) * RESULT) / GB, rel=0.02)  # in the last layer


def test_without_a_count_activations_are_unknown_and_the_rest_is_known(tmp_path):
    model = a_model()
    summary = train(tmp_path, model, sgd(model), torch.ones(ROWS, WIDTH), flops="off")
    assert set(summary.memory.parts_gb) == {"weights", "gradients", "optimizer"}


@pytest.mark.parametrize("zeroed", [True, False])
def test_if_anything_is_compiled_no_optimizer_is_hooked(tmp_path, monkeypatch, zeroed):
    monkeypatch.setattr(step_memory, "anything_compiled", lambda: True)
    model = frozen(a_model())
    before = [*optimizers._global_optimizer_pre_hooks]
    hooks = []
    model.register_forward_hook(lambda *_: hooks.append([*optimizers._global_optimizer_pre_hooks]))
    optimizer = sgd(model)
    real = optimizer.step
    if zeroed:
        optimizer.step = lambda: (real(), optimizer.zero_grad())
    summary = train(tmp_path, model, optimizer, torch.ones(ROWS, WIDTH))
    assert hooks == [before] * 4
    assert set(summary.memory.parts_gb) == {"weights", "gradients", "optimizer"}, "compiled code allocates unseen"
    assert (
        summary.memory.parts_gb["gradients"]
        == summary.memory.parts_gb["optimizer"]
        == pytest.approx((ALL - 3 * LAYER) / GB)
    )


def test_an_optimizer_of_another_model_is_left_out(tmp_path):
    model, other = a_model(), nn.Linear(WIDTH, WIDTH)
    theirs = sgd(other)

    def step(_):
        other(torch.ones(2, WIDTH)).sum().backward()
        theirs.step()

    train(tmp_path, model, sgd(model), torch.ones(ROWS, WIDTH), after_step=step)
    (parts,) = recorded(tmp_path, Memory)
    assert parts.gradients_gb == pytest.approx(ALL / GB)


@pytest.mark.filterwarnings("ignore:Seems like .optimizer.step")
def test_a_step_in_which_no_optimizer_steps_is_followed_by_another(tmp_path):
    model = models.llama()
    optimizer, calls = sgd(model), []
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    real = optimizer.step

    def step(closure=None):
        calls.append(closure)
        return None if len(calls) == 2 else real(closure)  # a gradient scaler skips a step

    optimizer.step = step
    arguments = models.training_arguments(tmp_path)
    models.trainer(arguments, PerfCallback(), model=model, optimizers=(optimizer, schedule)).train()
    (parts,) = recorded(tmp_path, Memory)
    assert (parts.step, parts.activations_gb) == (3, None)
    assert parts.optimizer_gb == parts.gradients_gb > 0


class Momentum(torch.optim.Optimizer):
    """An optimizer that keeps its state in lists of its own, beside the gradients of its last step."""

    def __init__(self, params):
        super().__init__(params, {})
        self.weights = [*self.param_groups[0]["params"]]
        self.moments = {"first": [torch.zeros_like(one) for one in self.weights]}
        self.gradients = []

    def step(self, closure=None):
        self.gradients = [one.grad for one in self.weights]
        for weight, moment in zip(self.weights, self.moments["first"], strict=True):
            moment.add_(weight.grad)
            weight.data.sub_(moment, alpha=0.01)


def test_state_in_attributes_of_the_optimizer_is_found(tmp_path):
    model = a_model()
    train(tmp_path, model, Momentum(model.parameters()), torch.randn(ROWS, WIDTH))
    (parts,) = recorded(tmp_path, Memory)
    assert (parts.optimizer_gb, parts.gradients_gb) == pytest.approx((LAYERS * LAYER / GB, LAYERS * LAYER / GB))


class Broken(torch.optim.Optimizer):
    """Its groups can't be read while it steps."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})
        self.steps, self.broken = 0, True

    def __getattribute__(self, name):
        if name == "param_groups" and super().__getattribute__("__dict__").get("broken"):
            raise ValueError("no")
        return super().__getattribute__(name)

    def step(self):
        self.steps += 1

    def zero_grad(self):
        pass


def test_an_optimizer_that_cannot_be_read_steps_all_the_same(tmp_path):
    model = a_model()
    broken = Broken(model.parameters(), lr=0.1)
    summary = train(tmp_path, model, broken, torch.ones(ROWS, WIDTH))
    assert (summary.failure, broken.steps) == (None, 4)
    (parts,) = recorded(tmp_path, Memory)
    assert (parts.gradients_gb, parts.optimizer_gb) == (None, None)
    assert parts.weights_gb == pytest.approx(ALL / GB)


def test_tensors_without_a_storage_of_their_own_are_taken_apart():
    from torch.testing._internal.two_tensor import TwoTensor

    sparse = torch.sparse_coo_tensor([[0, 1]], [1.0, 2.0], (10_000,), check_invariants=True)
    two = TwoTensor(torch.ones(100), torch.ones(100))
    assert sum(step_memory.sizes([two], "cpu").values()) == 800
    assert sum(step_memory.sizes([sparse], "cpu").values()) == 2 * 8 + 2 * 4
    assert step_memory.sizes([torch.ones(2, device="meta")], "cpu") == {}


@pytest.mark.parametrize("how", ["end", "raise", "leave"])
def test_no_hook_stays(tmp_path, how):
    before = [*optimizers._global_optimizer_pre_hooks]
    model = a_model()

    def after_step(step):
        if how == "raise" and step == 1:
            raise ValueError("no")

    if how == "raise":
        with pytest.raises(ValueError, match="no"):
            train(tmp_path, model, sgd(model), torch.ones(ROWS, WIDTH), after_step=after_step)
    elif how == "leave":
        optimizer, config = sgd(model), PerfConfig(output_dir=str(tmp_path))
        with measure(model=model, optimizer=optimizer, loader=[torch.ones(2, WIDTH)] * 3, config=config) as perf:
            for rows in perf.loader:
                model(rows).sum().backward()
                if perf.summary.steps:
                    break
                optimizer.step()
    else:
        train(tmp_path, model, sgd(model), torch.ones(ROWS, WIDTH))
    gc.collect()
    assert [*optimizers._global_optimizer_pre_hooks] == before


@pytest.fixture
def ticks(monkeypatch):
    found = FakeWatchdog()
    monkeypatch.setattr(memory, "WATCHDOG", found)
    return found


@pytest.mark.parametrize("door", DOORS)
def test_every_integration_notes_use_and_parts(tmp_path, ticks, door):
    done = DOORS[door](tmp_path, after_step=lambda _: ticks.pass_seconds(10)).run()
    uses, parts = recorded(tmp_path, Use), recorded(tmp_path, Memory)
    assert len(uses) == 8
    assert all(use.resident_gb > 0 for use in uses)
    assert uses[0].cpu_load is None
    assert all(use.cpu_load >= 0 for use in uses[1:])
    assert len(parts) == 1
    assert parts[0].weights_gb > 0
    assert parts[0].gradients_gb == pytest.approx(parts[0].weights_gb, rel=0.1)
    assert done.summary.memory.parts_gb["weights"] == parts[0].weights_gb


def used(monkeypatch, readings, cpus=4):
    found = iter(readings)
    own = SimpleNamespace(read=lambda: next(found), allowed_cpus=lambda: cpus)
    monkeypatch.setattr(memory, "processes", own)  # advice reads the processes too


def test_load_and_reads_are_those_since_the_last_record(tmp_path, ticks, monkeypatch):
    readings = [
        Processes(cpu_seconds=5.0 + 20 * place, resident_bytes=10**9, anonymous_bytes=None, read_bytes=10**6 * place)
        for place in range(9)
    ]
    used(monkeypatch, readings)
    DOORS["loop"](tmp_path, after_step=lambda _: ticks.pass_seconds(10)).run()
    uses = recorded(tmp_path, Use)
    assert [(use.cpu_load, use.read_mb) for use in uses] == [(None, None), *[(0.5, 1.0)] * 7]
    (watch,) = [one for one in ticks.watched if isinstance(one, memory.MemoryWatch)]
    assert watch.resources() == {"cpu_cores": 2.0, "resident_gb": 1.0}
    assert [use.step for use in uses] == [*range(1, 9)]


def test_where_nothing_is_known_nothing_is_written(tmp_path, ticks, monkeypatch):
    monkeypatch.setattr(memory.processes, "read", lambda: None)
    done = DOORS["loop"](tmp_path, after_step=lambda _: ticks.pass_seconds(10)).run()
    assert recorded(tmp_path, Use) == []
    assert done.summary.memory.resident_gb_per_hour is None


def test_an_error_in_the_watch_ends_no_measuring(tmp_path, ticks, monkeypatch):
    monkeypatch.setattr(memory, "StepMemory", lambda *_: 1 / 0)
    done = DOORS["loop"](tmp_path).run()
    assert done.summary.failure is None
    assert recorded(tmp_path, Memory) == []


def test_a_gpu_tells_its_peak_its_context_and_its_use(tmp_path, ticks, monkeypatch):
    monkeypatch.setattr(memory.device.Cpu, "allocator", lambda _: Allocator(3 * 10**9, 4 * 10**9, 1, 10**9))
    use = DeviceUse(
        utilization=0.75, memory_bytes=6 * 10**9, own_bytes=5 * 10**9, watts=300.0, throttled_by=("power cap",)
    )
    monkeypatch.setattr(memory, "Monitor", lambda _: SimpleNamespace(read=lambda: use, close=lambda: None))
    monkeypatch.setattr(memory.device.Cpu, "features", lambda _: Features(uuid="a-uuid"))
    model = a_model()
    train(tmp_path, model, sgd(model), torch.ones(ROWS, WIDTH), after_step=lambda _: ticks.pass_seconds(10))
    (parts,) = recorded(tmp_path, Memory)
    assert (parts.peak_gb, parts.context_gb) == (3.0, 1.0)
    assert parts.activations_gb == pytest.approx(LAYERS * RESULT / GB, rel=0.02)
    others = parts.weights_gb + parts.gradients_gb + parts.optimizer_gb + parts.activations_gb
    assert parts.temporary_gb == pytest.approx(3.0 - others, abs=1e-8)
    last = recorded(tmp_path, Use)[-1]
    assert (last.gpu_utilization, last.gpu_memory_gb, last.power_watts, last.throttled_by) == (
        0.75,
        6.0,
        300.0,
        ("power cap",),
    )


def test_the_context_of_several_gpus_is_unknown_as_only_one_is_read(tmp_path, ticks, monkeypatch):
    monkeypatch.setattr(memory.device.Cpu, "allocator", lambda _: Allocator(3 * 10**9, 4 * 10**9, 1, 10**9))
    use = DeviceUse(own_bytes=5 * 10**9)
    monkeypatch.setattr(memory, "Monitor", lambda _: SimpleNamespace(read=lambda: use, close=lambda: None))
    monkeypatch.setattr(memory.device.Cpu, "features", lambda _: Features(uuid="a-uuid"))
    of_model = memory.device.of_model
    monkeypatch.setattr(memory.device, "of_model", lambda *found: 2 * of_model(*found))
    model = a_model()
    train(tmp_path, model, sgd(model), torch.ones(ROWS, WIDTH), after_step=lambda _: ticks.pass_seconds(10))
    (parts,) = recorded(tmp_path, Memory)
    assert (parts.peak_gb, parts.context_gb) == (6.0, None)


def on_the_stub(tmp_path, monkeypatch, ticks, steps=31, **has):
    """A fit on a GPU of the stand-in of NVML, with a reading after each ten steps."""
    stub = load(monkeypatch)
    stub.has(**has)
    number = INSTANCE if has.get("mig") else uuid(3)
    monkeypatch.setattr(memory.device.Cpu, "features", lambda _: Features(uuid=number))
    model = a_model()
    summary = train(
        tmp_path, model, sgd(model), torch.ones(2, WIDTH), steps=steps, after_step=lambda _: ticks.pass_seconds(1)
    )
    assert summary.failure is None
    ticks.pass_seconds(1)
    assert (stub.started, stub.samples) == (0, 0)
    return summary, recorded(tmp_path, Use)


def test_nvml_tells_energy_clocks_and_activity(tmp_path, ticks, monkeypatch):
    summary, uses = on_the_stub(tmp_path, monkeypatch, ticks, reasons=0x40, mhz=1200)
    last = uses[-1]
    assert [(use.step, use.energy_joules) for use in uses] == [(1, None), *[(step, 4000.0) for step in (11, 21, 31)]]
    assert (last.power_watts, last.power_limit_watts, last.temperature_celsius) == (412.5, 700.0, 88)
    assert (last.sm_clock_mhz, last.max_sm_clock_mhz, last.throttled_by) == (1200, 1980, ("heat, by the hardware",))
    assert (last.tensor_activity, last.memory_bandwidth_activity, last.gpu_processes) == (0.625, 0.25, 1)
    assert summary.energy.joules / summary.energy.steps == summary.joules_per_step == 400.0
    assert summary.joules_per_token is None  # the batches have no tokens


@pytest.mark.parametrize(("reasons", "causes"), [(0x40, ["throttle"]), (0x4, []), (0x1, [])])
def test_heat_is_a_finding_and_a_power_cap_at_the_default_limit_is_none(tmp_path, ticks, monkeypatch, reasons, causes):
    read = environment.read
    monkeypatch.setattr(environment, "read", lambda **known: replace(read(**known), accelerator="cuda"))
    summary, _ = on_the_stub(tmp_path, monkeypatch, ticks, steps=61, reasons=reasons, mhz=1386)
    found = [finding for finding in summary.findings if finding.cause == "throttle"]
    assert [finding.cause for finding in found] == causes
    assert [finding.share for finding in found] == [pytest.approx(0.75 * 0.3)] * len(causes)


def test_a_fit_that_nobody_ends_leaves_nothing_open_in_nvml(tmp_path, ticks, monkeypatch):
    stub = load(monkeypatch)
    monkeypatch.setattr(memory.device.Cpu, "features", lambda _: Features(uuid=uuid(3)))
    config = PerfConfig(output_dir=str(tmp_path), flops="off")

    def left_alone():
        model = nn.Linear(WIDTH, 1)
        optimizer = sgd(model)
        perf = measure(model=model, optimizer=optimizer, loader=[torch.ones(2, WIDTH)] * 9, config=config).__enter__()
        for rows in perf.loader:
            model(rows).sum().backward()
            optimizer.step()
            ticks.pass_seconds(10)
        assert (stub.started, stub.samples) == (1, 1)
        ticks.watched.clear()  # the real watchdog holds a fit weakly

    left_alone()
    gc.collect()
    assert (stub.started, stub.samples) == (0, 0)


@pytest.mark.parametrize("has", [{"errors": "energy=3"}, {"mig": 1}, {"processes": 2}, {"errors": "*=15"}])
def test_energy_is_unknown_where_it_is_not_that_of_the_fit(tmp_path, ticks, monkeypatch, has):
    summary, _ = on_the_stub(tmp_path, monkeypatch, ticks, **has)
    assert (summary.energy, summary.joules_per_step) == (None, None)


def test_without_a_count_activations_come_from_the_allocator(tmp_path, monkeypatch):
    monkeypatch.setattr(memory.device.Cpu, "allocator", lambda _: Allocator(10**9, 10**9, 0, 10**9))
    model = a_model()
    train(tmp_path, model, sgd(model), torch.ones(ROWS, WIDTH), flops="off")
    (parts,) = recorded(tmp_path, Memory)
    assert (parts.source, parts.temporary_gb) == ("allocator", None)
    assert parts.activations_gb == pytest.approx(1 - 3 * ALL / GB)


def rows_of_a_fit(directory, before_row=lambda _: None):
    model = a_model()
    optimizer, rows = sgd(model), []
    config = PerfConfig(output_dir=str(directory))
    with measure(model=model, optimizer=optimizer, loader=[torch.ones(2, WIDTH)] * 8, config=config) as perf:
        for batch in perf.loader:
            model(batch).sum().backward()
            optimizer.step()
            before_row(len(rows))
            rows.append(perf.row())
    return [row for row in rows if row]


def test_memory_of_an_allocator_is_in_each_row(tmp_path, monkeypatch):
    retries = [5]
    monkeypatch.setattr(memory.device.Cpu, "allocator", lambda _: Allocator(2 * 10**9, 3 * 10**9, retries[-1], 10**9))
    found = rows_of_a_fit(tmp_path, lambda row: retries.append(8 if row > 4 else 5))
    assert [row["perf/memory_allocated_peak_gb"] for row in found] == [2.0] * len(found)
    assert [row["perf/memory_reserved_gb"] for row in found] == [3.0] * len(found)
    assert [row["perf/allocator_retries"] for row in found] == [0, 0, 0, 3, 0, 0][: len(found)]


def test_without_an_allocator_a_row_has_no_memory(tmp_path):
    found = rows_of_a_fit(tmp_path)
    assert found
    assert not [row for row in found if needing(GPU) & row.keys()]


class Leaky:
    """Memory by the minute: resident, and its anonymous part."""

    def __init__(self, grows_by, anonymous_by):
        self.minute, self.grows_by, self.anonymous_by = -1, grows_by, anonymous_by

    def __call__(self):
        self.minute += 1
        size = 10**9 + self.minute * self.grows_by
        own = None if self.anonymous_by is None else 10**9 + self.minute * self.anonymous_by
        return Processes(cpu_seconds=0.0, resident_bytes=size, anonymous_bytes=own, read_bytes=None)


@pytest.mark.parametrize(("grows_by", "anonymous_by"), [(0, 0), (10**7, 10**7), (10**7, 0), (10**7, None)])
def test_a_leak_is_a_finding_and_a_clean_run_has_none(tmp_path, ticks, monkeypatch, grows_by, anonymous_by):
    own = SimpleNamespace(read=Leaky(grows_by, anonymous_by), allowed_cpus=memory.processes.allowed_cpus)
    monkeypatch.setattr(memory, "processes", own)  # advice reads the processes too
    model = a_model()
    summary = train(
        tmp_path, model, sgd(model), torch.ones(2, WIDTH), steps=30, after_step=lambda _: ticks.pass_seconds(10)
    )
    assert summary.memory.resident_gb_per_hour == pytest.approx(grows_by / GB * 360)
    found = [finding for finding in summary.findings if finding.cause == "memory"]
    assert len(found) == bool(anonymous_by)
    for finding in found:
        assert " grew by 3.6 GB per hour (10 MB per step), from 1.1 to 1.2 GB" in finding.evidence


@pytest.mark.slow
@pytest.mark.parametrize("grows", [None, "heap", "file"])
def test_a_leak_of_real_memory_is_found(tmp_path, ticks, grows):
    model, kept, leaks = a_model(), [], grows == "heap"
    (tmp_path / "data").write_bytes(bytes(40 * 12_000_000))
    data = torch.from_file(str(tmp_path / "data"), shared=True, size=40 * 3_000_000)

    def after_step(step):
        if leaks:
            kept.append(torch.ones(3_000_000))
        elif grows == "file":
            data[: (step + 1) * 3_000_000].sum()
        ticks.pass_seconds(10)

    summary = train(tmp_path, model, sgd(model), torch.ones(2, WIDTH), steps=40, after_step=after_step)
    assert bool([finding for finding in summary.findings if finding.cause == "memory"]) is leaks
    if grows:
        assert summary.memory.resident_gb_per_hour == pytest.approx(0.012 * 360, rel=0.1)
