"""A compiled program trains as without us, to the last bit, and is compiled neither more often nor less."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from counted import bits, counts, gpt2, ids, known, left_behind, loss_of, truth
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader
from trainings import lightning_kit, models

from perf_callbacks import PerfConfig
from perf_callbacks.accelerate import attach
from perf_callbacks.journal import Steps, read
from perf_callbacks.loop import measure
from perf_callbacks.transformers import PerfCallback

pytestmark = [
    pytest.mark.usefixtures("new_compiler"),
    pytest.mark.filterwarnings("error:Using .torch.compile.module.. when there are global hooks"),
    # said by torch's compiler, and by torch of its compiler
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Profiler record function"),
    pytest.mark.filterwarnings("ignore:.* should not be instantiated. Methods on autograd functions"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf Tensor"),
    pytest.mark.filterwarnings("ignore:dynamo_pgo force disabled"),
]
STEPS = 13
"""The eleventh step is counted again."""


@pytest.fixture(autouse=True)
def _no_threads_that_compile():
    import torch._inductor.config as inductor

    with inductor.patch(compile_threads=1):
        yield


class Network(nn.Module):
    """Attention and a layer, with dropout; without a configuration, so that no copy can be run."""

    def __init__(self, *, checkpointed=False):
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.out, self.drop = nn.Linear(32, 96), nn.Linear(32, 32), nn.Dropout(0.1)
        self.checkpointed = checkpointed

    def attend(self, x):
        parts = self.qkv(x).unflatten(-1, (3, 2, 16)).transpose(1, 3).unbind(2)
        attended = nn.functional.scaled_dot_product_attention(*parts, dropout_p=0.1)
        return x + self.drop(attended.transpose(1, 2).flatten(2))

    def forward(self, x):
        x = checkpoint(self.attend, x, use_reentrant=False) if self.checkpointed else self.attend(x)
        return self.out(x.relu())


def network_batches(rows):
    return [torch.randn(size, 8, 32, generator=torch.Generator().manual_seed(step)) for step, size in enumerate(rows)]


def dropping(*, checkpointed=False):
    """A GPT-2 that draws random numbers. A copy of it can be run."""
    model = gpt2(attn_pdrop=0.1, resid_pdrop=0.1, embd_pdrop=0.1, loss_type="ForCausalLM", use_cache=False)
    if checkpointed:
        getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    return model


def token_batches(rows):
    return [ids(size, 16) for size in rows]


MODELS = {"network": (Network, network_batches), "gpt2": (dropping, token_batches)}


def program(
    directory,
    *,
    kind="network",
    backend="inductor",
    compiled_at=1,
    in_place=False,
    autocast=False,
    checkpointed=False,
    compiled_optimizer=False,
    rows=(4,) * STEPS,
    **options,
):
    """A plain loop that compiles its model at the first call of a step."""
    make, batches_of = MODELS[kind]
    model, batches = make(checkpointed=checkpointed), batches_of(rows)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = optimizer.step
    if compiled_optimizer:
        step = torch.compile(lambda: optimizer.step(), backend=backend)  # noqa: PLW0108 as in torch's tutorial
    compiled = None if in_place or compiled_at > 1 else torch.compile(model, backend=backend, **options)
    losses = []
    torch.manual_seed(1)
    config = PerfConfig(output_dir=str(directory), gc="off")
    with measure(
        model=model if compiled is None else compiled, optimizer=optimizer, loader=batches, config=config
    ) as perf:
        for number, batch in enumerate(perf.loader, start=1):
            if number == compiled_at and in_place:
                model.compile(backend=backend, **options)
            elif number == compiled_at > 1:
                compiled = torch.compile(model, backend=backend, **options)
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = loss_of(model if compiled is None else compiled, batch)
            loss.backward()
            step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses, model


def by_accelerate(directory, *, backend="inductor", autocast=False, checkpointed=False):
    torch.manual_seed(1)
    accelerator = Accelerator(cpu=True, dynamo_backend=backend, mixed_precision="bf16" if autocast else "no")
    attach(accelerator, PerfConfig(output_dir=str(directory)))
    model = dropping(checkpointed=checkpointed)
    prepared, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    loader = accelerator.prepare(DataLoader(token_batches((4,) * STEPS), batch_size=None))
    losses = []
    for batch in loader:
        loss = prepared(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    accelerator.end_training()
    return losses, model


def by_transformers(directory, *, backend="inductor", autocast=False, checkpointed=False):
    how = {"torch_compile": True, "torch_compile_backend": backend, "bf16": autocast}
    arguments = models.training_arguments(directory, max_steps=STEPS, **how)
    data = models.Tokens(4 * STEPS, mask=False)
    trainer = models.trainer(arguments, PerfCallback(), model=dropping(checkpointed=checkpointed), train_dataset=data)
    trainer.train()
    losses = [(row.get("loss"), row.get("grad_norm")) for row in trainer.state.log_history]
    return losses, trainer.model


def by_lightning(directory, *, backend="inductor", autocast=False, checkpointed=False):
    tree = lightning_kit.tree()
    losses = []

    class Module(tree.pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = dropping(checkpointed=checkpointed)

        def training_step(self, batch, batch_idx):
            return self.net(**batch).loss

        def on_train_batch_end(self, outputs, batch, batch_idx):
            losses.append(outputs["loss"].item())

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    module = Module()
    options = {"precision": "bf16-mixed"} if autocast else {}
    trainer = lightning_kit.trainer(directory, tree.PerfCallback(), max_steps=STEPS, **options)
    torch.manual_seed(1)
    trainer.fit(torch.compile(module, backend=backend), DataLoader(token_batches((4,) * STEPS), batch_size=None))
    return losses, module.net


def outcome(monkeypatch, switch, train, directory, **case):
    """What a fit comes to: losses, weights, random numbers, and the number of compiled graphs."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    monkeypatch.setenv("PERF_CALLBACKS", switch)
    losses, model = train(directory, **case)
    graphs = counters["stats"]["unique_graphs"]
    return SimpleNamespace(losses=losses, weights=bits(model), random=torch.get_rng_state().tolist(), graphs=graphs)


def both(monkeypatch, tmp_path, train, **case):
    """The same fit without us and with us: what it comes to, and a difference told by its name."""
    off = outcome(monkeypatch, "0", train, tmp_path / "off", **case)
    before = left_behind()
    ours = outcome(monkeypatch, "", train, tmp_path / "ours", **case)
    after = left_behind()
    assert not (tmp_path / "off" / "perf_callbacks").exists()
    assert [set(map(str, found.pop("filters"))) for found in (before, after)][1:]  # Lightning moves its own
    assert after == before
    for name in ("losses", "weights", "random", "graphs"):
        assert getattr(ours, name) == getattr(off, name), name
    assert off.graphs > 0


SHAPES = (4, 3, *itertools.repeat(4, STEPS - 2))
"""Step 2, which is counted, compiles again."""
CASES = {
    "inductor": {},
    "aot_eager": {"backend": "aot_eager"},
    "in place": {"in_place": True},
    "autocast": {"autocast": True},
    "checkpointed": {"checkpointed": True},
    "full graph": {"fullgraph": True},
    "first compiled in the counted step": {"compiled_at": 2},
    "compiled in place in the counted step": {"compiled_at": 2, "in_place": True},
    "first compiled after the counted step": {"compiled_at": 4},
    "a new shape in the counted step": {"rows": SHAPES},
    "new shapes": {"rows": (4, 4, 3, 4, 5, 3, 4, 5, 4, 4, 3, 4, 4), "dynamic": False},
    "compiled optimizer": {"compiled_optimizer": True},
    "all of it": {"autocast": True, "checkpointed": True, "compiled_optimizer": True, "rows": SHAPES},
}
QUICK = ("aot_eager", "first compiled in the counted step")


def assert_no_more(directory, true):
    """No step has more FLOPs than an eager one, and a count that has fewer says so."""
    for record in counts(directory):
        expected = true[record.step - 1]
        assert record.model_flops == expected or (record.lower_bound and 0 < record.model_flops < expected)
    found = known(directory)
    assert len(found) <= len(true)
    assert all(flops is None or flops <= most for flops, most in zip(found, true, strict=False))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param(kind, name, marks=() if kind == "network" and name in QUICK else pytest.mark.slow)
        for kind in MODELS
        for name in CASES
        if (kind, name) != ("gpt2", "full graph")  # transformers logs within its forward
    ],
)
def test_a_plain_loop(monkeypatch, tmp_path, kind, name):
    case = {"kind": kind} | CASES[name]
    both(monkeypatch, tmp_path, program, **case)
    make, batches_of = MODELS[kind]
    true = [truth(make(), batch) for batch in batches_of(case.get("rows", (4,) * STEPS))]
    assert_no_more(tmp_path / "ours", true)


DOORS = {"accelerate": by_accelerate, "transformers": by_transformers, "lightning": by_lightning}
WAYS = {
    "inductor": {},
    "aot_eager": {"backend": "aot_eager"},
    "autocast": {"autocast": True},
    "checkpointed": {"checkpointed": True},
}


@pytest.mark.slow
@pytest.mark.usefixtures("accelerate_state")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("door", DOORS)
def test_a_trainer(monkeypatch, tmp_path, door, way):
    both(monkeypatch, tmp_path, DOORS[door], **WAYS[way])
    true = truth(dropping(), ids(4, 16))
    assert_no_more(tmp_path / "ours", [true] * STEPS)


@pytest.mark.parametrize("at", [0, 2])
def test_a_sequence_that_is_compiled_within_the_loop_has_as_many_graphs(tmp_path, at):
    def graphs(*, measured):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))
        config = PerfConfig(output_dir=str(tmp_path), enabled=measured)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with measure(model=model, optimizer=optimizer, loader=[torch.ones(2, 4)] * 6, config=config) as perf:
            for step, batch in enumerate(perf.loader):
                if step == at:
                    model.compile(backend="aot_eager")
                if step == at + 2:
                    model._compiled_call_impl = None
                model(batch).sum().backward()
                optimizer.step()
        return torch._dynamo.utils.counters["stats"]["unique_graphs"], torch.randn(1).item()

    assert graphs(measured=True) == graphs(measured=False)
    torch._dynamo.reset()
    (steps,) = [entry.record for entry in read(tmp_path) if isinstance(entry.record, Steps)]
    unseen = [step for step, seconds in enumerate(steps.forward_time) if not seconds]
    assert unseen == [at + 2]  # the attribute is looked at once per batch
