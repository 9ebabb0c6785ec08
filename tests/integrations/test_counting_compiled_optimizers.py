"""Optimizers that are compiled stay so, and their steps are counted, though they end within a compiled call."""

from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from counted import bits, counts, excluded, known, left_behind, truth
from torch import nn

from perf_callbacks import PerfConfig
from perf_callbacks.accelerate import attach
from perf_callbacks.flops.counting.count_window import CountWindow
from perf_callbacks.loop import measure

pytestmark = [  # torch says so of itself when it first traces an optimizer
    pytest.mark.usefixtures("new_compiler"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Profiler record function"),
]
STEPS = 6


class Backend:
    """Compiles nothing, and knows how often what it would have compiled is called."""

    def __init__(self):
        self.calls = 0

    def __call__(self, graph, _):
        def call(*args):
            self.calls += 1
            return graph.forward(*args)

        return call


def recipe(optimizer, backend):
    """As torch's tutorial on compiled optimizers has it."""

    @torch.compile(backend=backend)
    def step():
        optimizer.step()

    return step


def method(optimizer, backend):
    return torch.compile(optimizer.step, backend=backend)


def in_place(optimizer, backend):
    optimizer.step = torch.compile(optimizer.step, backend=backend)
    return lambda: optimizer.step()  # noqa: PLW0108 as loops call it


HOW = [recipe, *[pytest.param(how, marks=pytest.mark.slow) for how in (method, in_place)]]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))


def batches():
    return [torch.full((3, 4), 1 / (1 + number)) for number in range(STEPS)]


def train(directory, flops, how, *, momentum=0.9, zero=True, model_compiled=False, stop=STEPS):
    torch._dynamo.reset()
    backend, model = Backend(), network()
    if model_compiled:
        model.compile(backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=momentum)
    step, ran = how(optimizer, backend), []
    config = PerfConfig(output_dir=str(directory), flops=flops)
    with measure(model=model, optimizer=optimizer, loader=batches(), config=config) as perf:
        for number, batch in enumerate(perf.loader, start=1):
            model(batch).square().mean().backward()
            before = backend.calls
            step()
            ran.append(backend.calls > before)
            if zero:
                optimizer.zero_grad()
            if number == stop:
                break
    from torch._dynamo.utils import counters

    return SimpleNamespace(
        failure=perf.summary.failure,
        steps=perf.summary.steps,
        ran=ran,
        weights=bits(model),
        graphs=dict(counters["stats"]),
    )


@pytest.mark.parametrize("how", HOW)
def test_steps_are_counted_and_all_run_compiled(tmp_path, how):
    before = left_behind()
    ours = train(tmp_path, "count", how)
    assert left_behind() == before
    assert ours.failure is None
    assert ours.steps == STEPS
    # a first step that compiles for seconds may be on disk before the second one is counted
    assert known(tmp_path)[1:] == [truth(network(), batch) for batch in batches()][1:]
    (record,) = counts(tmp_path)
    assert (record.step, record.lower_bound) == (2, True), "what the compiler fused is not seen"
    assert excluded(tmp_path) == [2]
    assert ours.ran == [True] * STEPS


def test_it_is_compiled_as_often_and_comes_to_the_same_as_without(tmp_path):
    ours = train(tmp_path / "count", "count", recipe)
    from torch._dynamo.utils import counters

    counters.clear()
    torch._dynamo.reset()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    step = recipe(optimizer, Backend())
    for batch in batches():
        model(batch).square().mean().backward()
        step()
        optimizer.zero_grad()
    assert ours.weights == bits(model)
    assert ours.graphs == dict(counters["stats"])


@pytest.mark.parametrize("options", [{"model_compiled": True}, {"zero": False, "stop": 3}])
def test_whatever_follows_the_step(tmp_path, options):
    before = left_behind()
    ours = train(tmp_path, "count", recipe, **options)
    assert left_behind() == before
    assert ours.failure is None
    assert ours.steps == options.get("stop", STEPS)
    assert known(tmp_path)[1:] == [truth(network(), batch) for batch in batches()][1 : options.get("stop", STEPS)]


def test_with_accelerate(tmp_path):
    before, backend = left_behind(), Backend()
    accelerator = Accelerator(cpu=True)
    attach(accelerator, PerfConfig(output_dir=str(tmp_path)))
    model = network()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    loader = accelerator.prepare(torch.utils.data.DataLoader(batches(), batch_size=None))
    step = recipe(optimizer, backend)
    for batch in loader:
        accelerator.backward(model(batch).square().mean())
        step()
        optimizer.zero_grad()
    accelerator.end_training()
    assert left_behind() == before
    assert known(tmp_path)[1:] == [truth(network(), batch) for batch in batches()][1:]
    assert backend.calls == STEPS


def test_the_compiler_looks_at_nothing_of_ours_from_the_third_step_on(tmp_path):
    from torch._dynamo.utils import counters

    model, seen = network(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = recipe(optimizer, "eager")
    with measure(
        model=model, optimizer=optimizer, loader=batches(), config=PerfConfig(output_dir=str(tmp_path))
    ) as perf:
        for batch in perf.loader:
            model(batch).square().mean().backward()
            step()
            optimizer.zero_grad()
            seen.append((counters["frames"]["total"], sum(counters["graph_break"].values())))
    assert len(set(seen[1:])) == 1


def test_an_optimizer_that_steps_within_the_backward(tmp_path):
    """Autograd puts the thread's modes back when a backward ends, so that none can be taken off within."""
    before, model = left_behind(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    stack = []

    def last(_parameter):
        optimizer.step()
        optimizer.zero_grad()

    model[0].weight.register_post_accumulate_grad_hook(last)
    config = PerfConfig(output_dir=str(tmp_path))
    with measure(model=model, optimizer=optimizer, loader=batches(), config=config) as perf:
        for batch in perf.loader:
            model(batch).square().mean().backward()
            stack.append(left_behind()["modes"])
        assert perf.summary.failure is None
    assert left_behind() == before
    assert known(tmp_path)[:-1] == [truth(network(), batch) for batch in batches()][: len(known(tmp_path)) - 1]
    assert not any(mode for modes in stack[3:] for mode in modes), "no mode stays on for the rest of the fit"


def test_a_window_does_not_open_where_its_mode_would_be_lost():
    window = CountWindow()
    inside = torch.compiler.disable(lambda: window.open())  # noqa: PLW0108 compiled code calls it
    torch.compile(lambda x: (inside(), x + 1)[1], backend="eager")(torch.ones(2))
    assert not window.counter.pushed
    assert left_behind()["modes"] == []
