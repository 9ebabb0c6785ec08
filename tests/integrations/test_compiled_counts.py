"""Models and optimizers that are compiled are counted as others are, and run compiled in each step."""

import itertools

import pytest
import torch
from counted import counts, excluded, fit, known, left_behind, loop, truth
from rows import each_row
from torch import nn

from perf_callbacks import PerfConfig
from perf_callbacks.flops.counting.count_window import CountWindow
from perf_callbacks.loop import measure

pytestmark = [  # what Dynamo says
    pytest.mark.usefixtures("new_compiler"),
    pytest.mark.filterwarnings("error:Using .torch.compile.module.. when there are global hooks"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf Tensor"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Profiler record function"),
]
ROWS = (2, 2, 2, 3, 5, 2, 3, 5, 7, 7)
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


class Part(nn.Linear):
    """Code of the program: of torch's modules alone, a sequence that is compiled in place stays as it is."""

    def forward(self, x):
        return super().forward(x).relu()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), Part(8, 8), nn.Linear(8, 4))


def wrapped(backend):
    return torch.compile(network(), backend=backend)


def in_place(backend):
    model = network()
    model.compile(backend=backend)
    return model


def a_part(backend):
    model = network()
    model[1].compile(backend=backend)
    return model


@pytest.mark.parametrize("make", [wrapped, in_place, a_part])
def test_a_compiled_model_is_counted_and_runs_compiled_in_each_step(tmp_path, make):
    before, backend, calls = left_behind(), Backend(), [0]
    batches = [torch.full((rows, 4), 1 / rows) for rows in ROWS]
    loop(tmp_path, make(backend), batches, after=lambda: calls.append(backend.calls))
    assert left_behind() == before
    true = [truth(network(), batch) for batch in batches]
    assert known(tmp_path)[1:] == true[1:]  # a slow first step is written before the count
    assert [record.compiled for record in counts(tmp_path)] == [True] * 2
    assert all(later > earlier for earlier, later in itertools.pairwise(calls))


def test_equal_recounts_of_compiled_code_confirm_its_count(tmp_path):
    model = torch.compile(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), backend="aot_eager")
    perf = fit(tmp_path, model, [torch.ones(2, 4)] * 40)
    assert perf.summary.flops.checked_step == 33
    assert [record.step for record in counts(tmp_path)] == [2, 11, 33]
    assert len({record.model_flops for record in counts(tmp_path)}) == 1


def recipe(optimizer, backend):
    """As torch's tutorial on compiled optimizers has it."""

    @torch.compile(backend=backend)
    def step():
        optimizer.step()

    return step


def method(optimizer, backend):
    return torch.compile(optimizer.step, backend=backend)


def replaced(optimizer, backend):
    optimizer.step = torch.compile(optimizer.step, backend=backend)
    return lambda: optimizer.step()  # noqa: PLW0108 as loops call it


def batches():
    return [torch.full((3, 4), 1 / (1 + number)) for number in range(STEPS)]


def train(directory, how, backend, *, momentum=0.9, zero=True, model_compiled=False, stop=STEPS, seen=lambda: None):
    """A plain loop that compiles its optimizer's step; its summary, and what is seen after each step."""
    model, looks = network(), []
    if model_compiled:
        model.compile(backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=momentum)
    step, config = how(optimizer, backend), PerfConfig(output_dir=str(directory))
    with measure(model=model, optimizer=optimizer, loader=batches(), config=config) as perf:
        for batch in itertools.islice(perf.loader, stop):
            model(batch).square().mean().backward()
            step()
            looks.append(seen())
            if zero:
                optimizer.zero_grad()
    return perf.summary, looks


@each_row(
    ("how", "options"),
    [
        (recipe, {}),
        (method, {}),
        (replaced, {}),
        (recipe, {"model_compiled": True}),
        (recipe, {"zero": False, "stop": 3}),
    ],
)
def test_steps_of_a_compiled_optimizer_are_counted_and_run_compiled(tmp_path, how, options):
    torch._dynamo.reset()
    before, backend, stop = left_behind(), Backend(), options.get("stop", STEPS)
    directory = tmp_path / f"{how.__name__}{len(options)}{stop}"
    summary, calls = train(directory, how, backend, seen=lambda: backend.calls, **options)
    assert left_behind() == before
    assert (summary.failure, summary.steps) == (None, stop)
    # a first step that compiles for seconds may be on disk before the second one is counted
    assert known(directory)[1:] == [truth(network(), batch) for batch in batches()][1:stop]
    (record,) = counts(directory)
    assert (record.step, record.lower_bound) == (2, True), "what the compiler fused is not seen"
    assert excluded(directory) == [2]
    assert all(later > earlier for earlier, later in itertools.pairwise([0, *calls]))


def test_the_compiler_looks_at_nothing_of_ours_from_the_third_step_on(tmp_path):
    from torch._dynamo.utils import counters

    def seen():
        return counters["frames"]["total"], sum(counters["graph_break"].values())

    _, looks = train(tmp_path, recipe, "eager", momentum=0, seen=seen)
    assert len(set(looks[1:])) == 1


def test_an_optimizer_that_steps_within_the_backward_is_counted(tmp_path):
    """Autograd puts the thread's modes back when a backward ends, so that none can be taken off within."""
    before, model, stack = left_behind(), network(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

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
