"""What is compiled is counted as what is not, and is as compiled afterwards as if nobody had counted."""

from types import SimpleNamespace

import pytest
import sparks
import tiny
import torch
from counted import counts, ids, known, left_behind, loop, truth
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from perf_callbacks import PerfConfig
from perf_callbacks.transformers import PerfCallback

pytestmark = pytest.mark.timeout(300)
ROWS = (2, 2, 2, 3, 5, 2)
HOOKS = pytest.mark.filterwarnings("error:Using .torch.compile.module.. when there are global hooks")


@pytest.fixture(autouse=True)
def _compiler():
    """As new, before and after."""
    from torch._dynamo.utils import counters

    def reset():
        torch._dynamo.reset()
        counters.clear()

    reset()
    yield
    reset()


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


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))


def wrapped(backend, **options):
    return torch.compile(network(), backend=backend, **options)


def in_place(backend, **options):
    model = network()
    model.compile(backend=backend, **options)
    return model


def a_part(backend, **options):
    model = network()
    model[2].compile(backend=backend, **options)
    return model


def batches():
    return [torch.full((rows, 4), 1 / rows) for rows in ROWS]


def train(directory, flops, make, **options):
    """A fit, and how what was compiled fared in it and after it."""
    torch._dynamo.reset()
    from torch._dynamo.utils import counters

    counters.clear()
    backend = Backend()
    model = make(backend, **options)
    losses = loop(directory, model, batches(), flops=flops)
    within, graphs_within = len(backend.calls), graphs()
    for batch in (*batches(), torch.ones(7, 4)):
        model(batch).sum().backward()
    return SimpleNamespace(
        losses=losses,
        within=within,
        after=len(backend.calls) - within,
        graphs=(graphs_within.get("unique_graphs"), graphs().get("unique_graphs")),
    )


@HOOKS
@pytest.mark.parametrize("options", [{}, {"fullgraph": True}, {"dynamic": False}], ids=["plain", "full", "static"])
@pytest.mark.parametrize("make", [wrapped, in_place, a_part])
def test_in_a_loop(tmp_path, make, options):
    before = left_behind()
    counted = train(tmp_path / "count", "count", make, **options)
    off = train(tmp_path / "off", "off", make, **options)
    assert left_behind() == before
    true = [truth(network(), batch) for batch in batches()]
    assert known(tmp_path / "count") == true
    assert [record.compiled for record in counts(tmp_path / "count")] == [True, True]
    assert counted.losses == off.losses
    assert counted.within == off.within - 2, "two steps were counted"
    assert (counted.after, counted.after) == (off.after, len(ROWS) + 1)
    assert counted.graphs[1] == off.graphs[1]


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
    assert len(backend.calls) == len(ROWS) - 1 - len(counts(tmp_path))


def test_the_counter_of_torch_leaves_what_was_compiled_eager():
    """Why it is not the one that counts: were it to change, ours could be simpler."""
    backend = Backend()
    model = wrapped(backend)
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
    assert len(backend.calls) == 2
    with FlopCounterMode(display=False):
        model(torch.ones(2, 4)).sum().backward()
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
    assert len(backend.calls) == 2, "from then on it is never called again"


def compiled_trainer(directory, flops, **arguments):
    torch._dynamo.reset()
    from torch._dynamo.utils import counters

    counters.clear()
    arguments = tiny.training_arguments(directory, max_steps=5, logging_steps=10, **arguments)
    trainer = tiny.trainer(arguments, PerfCallback(PerfConfig(flops=flops)), train_dataset=tiny.Tokens(32))
    trainer.train()
    return [row.get("train_loss") for row in trainer.state.log_history], graphs()


@HOOKS
@pytest.mark.filterwarnings("ignore:dynamo_pgo force disabled")
@pytest.mark.parametrize("bf16", [False, True])
def test_a_trainer_of_transformers_that_compiles(tmp_path, bf16):
    arguments = {"torch_compile": True, "torch_compile_backend": "aot_eager", "bf16": bf16}
    counted, off = [compiled_trainer(tmp_path / flops, flops, **arguments) for flops in ("count", "off")]
    assert counted == off
    assert off[1]["unique_graphs"] > 0
    (record,) = counts(tmp_path / "count")
    assert (record.model_flops, record.compiled) == (truth(tiny.llama(), ids(4, 16)), True)
    assert known(tmp_path / "count") == [record.model_flops] * 5


@HOOKS
def test_a_model_compiled_before_the_trainer_of_transformers(tmp_path):
    model = torch.compile(tiny.llama(), backend="aot_eager")
    arguments = tiny.training_arguments(tmp_path, max_steps=5, logging_steps=10)
    tiny.trainer(arguments, PerfCallback(), model=model, train_dataset=tiny.Tokens(32)).train()
    assert graphs()["unique_graphs"] > 0
    assert known(tmp_path) == [truth(tiny.llama(), ids(4, 16))] * 5


@HOOKS
@pytest.mark.parametrize("how", ["module", "part"])
def test_a_module_of_lightning_that_is_compiled(tmp_path, how):
    fits = {}
    for flops in ("count", "off"):
        torch._dynamo.reset()
        from torch._dynamo.utils import counters

        counters.clear()
        kind = sparks.tree().Automatic
        quiet = type("Quiet", (kind,), {"training_step": lambda self, batch, _: self.net(batch).square().mean()})
        module = quiet()
        if how == "part":
            module.net.compile(backend="aot_eager")
        else:
            module = torch.compile(module, backend="aot_eager")
        ours = sparks.tree().PerfCallback(PerfConfig(flops=flops))
        sparks.trainer(tmp_path / flops, ours, max_steps=5).fit(module, sparks.loader(32))
        fits[flops] = graphs(), [parameter.tolist() for parameter in module.parameters()]
    assert fits["count"] == fits["off"]
    assert fits["off"][0]["unique_graphs"] > 0
    true = truth(nn.Sequential(nn.Linear(4, 4)), torch.ones(4, 4))
    assert [(record.model_flops, record.compiled) for record in counts(tmp_path / "count")] == [(true, True)]
    assert known(tmp_path / "count")[1:] == [true] * 4
