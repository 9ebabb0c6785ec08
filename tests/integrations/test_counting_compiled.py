"""What is compiled is counted as what is not, and is as compiled afterwards as if nobody had counted."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from counted import counts, ids, known, left_behind, loop, truth
from sampling import crossed
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from trainings import models
from transformers import Trainer

from perf_callbacks import PerfConfig, Summary
from perf_callbacks.journal import read
from perf_callbacks.loop import measure
from perf_callbacks.transformers import PerfCallback

pytestmark = [  # what Dynamo says; the second of masks as transformers 4 makes them
    pytest.mark.usefixtures("new_compiler"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf Tensor"),
    pytest.mark.filterwarnings(
        "ignore:.* should not be instantiated. Methods on autograd functions:DeprecationWarning"
    ),
]
ROWS = (2, 2, 2, 3, 5, 2, 3, 5, 7, 7)
COUNTED = 2
HOOKS = pytest.mark.filterwarnings("error:Using .torch.compile.module.. when there are global hooks")


def graphs():
    from torch._dynamo.utils import counters

    return dict(counters["stats"])


class Backend:
    """Compiles nothing, and knows how often what it would have compiled is called."""

    def __init__(self):
        self.calls = []

    def __call__(self, graph, _):
        def call(*args):
            self.calls.append(len(self.calls))
            return graph.forward(*args)

        return call


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x).relu()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), Part(), nn.Linear(8, 4))


def wrapped(backend, **options):
    return torch.compile(network(), backend=backend, **options)


def in_place(backend, **options):
    model = network()
    model.compile(backend=backend, **options)
    return model


def a_part(backend, **options):
    model = network()
    model[1].compile(backend=backend, **options)
    return model


def batches():
    return [torch.full((rows, 4), 1 / rows) for rows in ROWS]


class Counting(nn.Module):
    """Notes how often what was compiled has been called before each step."""

    def __init__(self, model, backend):
        super().__init__()
        self.model, self.backend, self.before = model, backend, []

    def forward(self, x):
        self.before.append(len(self.backend.calls))
        return self.model(x)


def train(directory, flops, make, **options):
    """A fit: its losses, in which steps what was compiled ran, and how many graphs there are."""
    torch._dynamo.reset()
    from torch._dynamo.utils import counters

    counters.clear()
    backend = Backend()
    model = Counting(make(backend, **options), backend)
    losses = loop(directory, model, batches(), flops=flops)
    calls = [*model.before, len(backend.calls)]
    return SimpleNamespace(
        losses=losses,
        ran=[after > before for before, after in itertools.pairwise(calls)],
        graphs=graphs().get("unique_graphs"),
    )


@HOOKS
@pytest.mark.parametrize(
    ("make", "options"),
    crossed(
        {make.__name__: make for make in (wrapped, in_place, a_part)},
        {"plain": {}, "full": {"fullgraph": True}, "static": {"dynamic": False}},
    ),
)
def test_in_a_loop(tmp_path, make, options):
    before = left_behind()
    counted = train(tmp_path / "count", "count", make, **options)
    off = train(tmp_path / "off", "off", make, **options)
    assert left_behind() == before
    true = [truth(network(), batch) for batch in batches()]
    assert known(tmp_path / "count")[1:] == true[1:]  # a slow first step is written before the count
    assert [record.compiled for record in counts(tmp_path / "count")] == [True] * COUNTED
    assert counted.losses == off.losses
    assert counted.ran == off.ran == [True] * len(ROWS)
    assert counted.graphs == off.graphs > 1


@HOOKS
def test_a_model_that_compiles_for_the_first_time_after_the_count(tmp_path):
    """Its first step was in eval mode, as it were: what is compiled is not there when the count begins."""
    backend, model = Backend(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    from perf_callbacks.loop import measure

    config = PerfConfig(output_dir=str(tmp_path))
    with measure(model=model, optimizer=optimizer, loader=batches(), config=config) as perf:
        for number, batch in enumerate(perf.loader):
            if number == 1:
                model.compile(backend=backend)
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert known(tmp_path) == [truth(network(), batch) for batch in batches()]
    assert len(backend.calls) == len(ROWS) - 1


@pytest.mark.filterwarnings("ignore:Using .torch.compile.module.. when there are global hooks")
def test_the_counter_of_torch_leaves_what_was_compiled_eager():
    """Why it is not the one that counts: were it to change, ours could be simpler."""
    backend = Backend()
    model = in_place(backend)
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
    assert len(backend.calls) == 2
    with FlopCounterMode(display=False):
        model(torch.ones(2, 4)).sum().backward()
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
    assert len(backend.calls) == 2, "from then on it is never called again"


@pytest.mark.slow
@HOOKS
def test_a_model_compiled_before_the_trainer_of_transformers(tmp_path):
    model = torch.compile(models.llama(), backend="aot_eager")
    arguments = models.training_arguments(tmp_path, max_steps=5, logging_steps=10, remove_unused_columns=False)
    Trainer(model, arguments, callbacks=[PerfCallback()], train_dataset=models.Tokens(32)).train()
    assert graphs()["unique_graphs"] > 0
    assert known(tmp_path)[1:] == [truth(models.llama(), ids(4, 16))] * 4  # as above


@pytest.mark.filterwarnings("ignore:Using .torch.compile.module.. when there are global hooks")
def test_a_model_that_is_compiled_in_the_midst_of_a_fit_stays_compiled(tmp_path):
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer, graphs = torch.optim.SGD(model.parameters(), lr=1e-3), []

    def backend(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    run, config = model, PerfConfig(output_dir=str(tmp_path), gc="off")
    with measure(model=model, optimizer=optimizer, loader=[torch.ones(4, 16)] * 12, config=config) as perf:
        for step, x in enumerate(perf.loader):
            if step == 4:
                run = torch.compile(model, backend=backend, fullgraph=True)
            run(x).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert perf.summary.steps == 12
    assert 1 <= len(graphs) <= 2


def test_equal_recounts_of_compiled_code_confirm_its_count(tmp_path):
    model = torch.compile(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), backend="aot_eager")
    loop(tmp_path, model, [torch.ones(2, 4)] * 40)
    torch._dynamo.reset()
    (summary,) = [entry.record for entry in read(tmp_path) if isinstance(entry.record, Summary)]
    assert summary.flops.checked_step == 33
    assert [record.step for record in counts(tmp_path)] == [2, 11, 33]
    assert len({record.model_flops for record in counts(tmp_path)}) == 1
