"""The facts about a fit are read through whatever is wrapped around its parts."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader
from trainings.models import llama

from perf_callbacks.advice import observer
from perf_callbacks.advice.observer import read
from perf_callbacks.flops.count_records import counted
from perf_callbacks.flops.counting.counter import FlopCounter
from perf_callbacks.kernel.fit.setup import Setup, flat
from perf_callbacks.kernel.process import device as devices
from perf_callbacks.kernel.process.cpu_time import CpuTime
from perf_callbacks.kernel.records.summary_parts import CpuSummary


def facts(model=None, *, place="cpu", **setup):
    return read(model, Setup(**setup), integration="loop", device=torch.device(place))


class Wrapper(torch.nn.Module):
    """As DDP and Lightning modules hold a model."""

    def __init__(self, name, model):
        super().__init__()
        setattr(self, name, model)


@pytest.mark.parametrize(
    "wrap", [lambda model: model, *[lambda model, of=of: Wrapper(of, model) for of in ("module", "model")]]
)
def test_attention_is_that_of_the_model_within(wrap):
    found = facts(wrap(llama(attn_implementation="eager")))
    assert (found.attention, found.sdpa) == ("eager", True)


def test_a_model_that_has_no_configuration_has_no_kind_of_attention():
    assert facts(torch.nn.Linear(2, 2)).attention is None


@pytest.mark.parametrize(("options", "fused"), [({}, False), ({"fused": True}, True), ({"foreach": True}, True)])
def test_an_optimizer_of_torch_is_known_by_its_class(options, fused):
    optimizer = torch.optim.AdamW(torch.nn.Linear(2, 2).parameters(), **options)
    found = facts(optimizers=(optimizer,))
    assert (found.optimizer, found.tensors, found.fused) == ("AdamW", 2, fused)


def test_an_optimizer_of_the_users_own_is_not_known():
    class AdamW(torch.optim.Optimizer):
        pass

    found = facts(optimizers=(AdamW(torch.nn.Linear(2, 2).parameters(), {}),))
    assert (found.optimizer, found.tensors) == (None, 2)


def test_nothing_is_known_of_nothing():
    found = facts()
    assert (found.workers, found.attention, found.optimizer, found.fused) == (None, None, None, False)


def test_workers_are_those_of_the_loader_with_fewest():
    loaders = DataLoader([1], num_workers=2), DataLoader([1], num_workers=1), [1]
    assert facts(loaders=loaders).workers == 1
    assert facts(loaders=([1],)).workers is None


def test_loaders_are_found_in_whatever_holds_them():
    assert flat(None) == ()
    assert flat({"a": 1, "b": [2, (3,)]}) == (1, 2, 3)
    assert flat(SimpleNamespace(flattened=[1, 2])) == (1, 2)


def test_the_weights_are_counted_by_shape():
    model = llama(hidden_size=24, vocab_size=50, num_attention_heads=2)
    found = facts(model)
    assert found.weights[(50, 24)] == 2
    assert (found.vocabulary, found.head) == (50, 12)
    assert {len(shape) for shape in found.weights} == {2}


def test_a_configuration_of_several_language_models_is_taken_as_it_is():
    model = llama()
    model.config.get_text_config = lambda: int("two")
    assert facts(model).vocabulary == 64


def test_a_model_that_needs_eager_attention_is_not_told_to_leave_it():
    model = llama(attn_implementation="eager")
    model.config.attn_logit_softcapping = 50.0
    assert not facts(model).sdpa


def test_switches_of_torch_and_of_the_environment(monkeypatch):
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    found = facts(place="cuda")
    assert (found.deterministic, found.uncached, found.blocking) == (
        True,
        "PYTORCH_NO_CUDA_MEMORY_CACHING",
        "CUDA_LAUNCH_BLOCKING",
    )
    assert found.expandable == "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64,expandable_segments:True")
    assert facts(place="cuda").expandable is None


def test_switches_of_gpus_do_not_matter_on_a_cpu(monkeypatch):
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    found = facts()
    assert (found.uncached, found.blocking, found.expandable, found.clocks) == (None, None, None, None)


@pytest.fixture
def an_a100(monkeypatch):
    monkeypatch.setattr(devices.Cuda, "features", lambda _: devices.Features(half="bf16", tf32=True))


@pytest.mark.usefixtures("an_a100")
@pytest.mark.parametrize("fp32", ["tf32", "ieee"])
@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="from torch 2.9 on")
def test_tf32_is_known_by_the_setting_of_a_backend(fp32):
    matmul = torch.backends.cuda.matmul
    before, matmul.fp32_precision = matmul.fp32_precision, fp32
    try:
        assert facts(place="cuda").tf32 == (fp32 == "tf32")
        assert not facts().tf32
    finally:
        matmul.fp32_precision = before


@pytest.mark.usefixtures("an_a100")
@pytest.mark.parametrize(("precision", "tf32"), [("highest", False), ("high", True)])
def test_tf32_is_known_by_the_precision_of_products(precision, tf32):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        found = facts(place="cuda")
        assert (found.tf32, found.tf32_possible) == (tf32, True)
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.fixture
def alone():
    """A process group of one rank."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


class Checkpointed(torch.nn.Module):
    """A model whose recomputation is a backward within the backward."""

    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x):
        for part in self.parts:
            x = checkpoint(part, x.requires_grad_(), use_reentrant=True)
        return x


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("quiet", [True, False])
@pytest.mark.parametrize("kind", [lambda: torch.nn.Linear(4, 4), Checkpointed])
def test_reductions_of_gradients_are_counted_by_micro_batch(quiet, kind):
    model = DistributedDataParallel(kind(), bucket_cap_mb=1e-6)
    assert not facts(model).ddp  # alone
    model.process_group = SimpleNamespace(size=lambda: 2)
    assert facts(model).ddp
    with FlopCounter() as counter:
        for last in (False, False, True):
            with model.no_sync() if quiet and not last else nullcontext():
                model(torch.ones(2, 4)).sum().backward()
        distributed.all_reduce(torch.ones(1))  # a loss, to be logged
    assert counted(counter, 2, None).reductions == (1 if quiet else 3)


@pytest.mark.parametrize(
    ("times", "ranks", "left"),
    [
        ((0.0, 8.0, 0.0), 1, 8.0),
        ((2.0, 1.0, 0.0), 1, 3.0),  # five CPUs are busy with other programs
        ((0.0, 4.6, 3.4 / 4.6), 1, 8 - 3.4 * 8 / 4.6),  # six other threads share the CPUs with eight of this process
        ((1.0, 1.5, 0.0), 4, 7 / 4),  # four ranks use six of seven busy CPUs
        ((0.0, 0.5, 0.0), 16, 8 / 16),  # sixteen ranks use all CPUs
        ((0.0, 0.1, 99.0), 1, 0.0),
    ],
)
def test_cpus_are_left_by_other_programs(monkeypatch, times, ranks, left):
    assert since_a_second(monkeypatch, *times, ranks=ranks).facts()["left_cpus"] == pytest.approx(left)


def since_a_second(monkeypatch, idle, own, queued, *, ranks=1):
    """After a second in which the training thread ran, and waited for a CPU for `queued` seconds."""
    now = [0.0]
    monkeypatch.setattr(observer.processes, "cpu_mask", lambda: frozenset(range(8)))
    monkeypatch.setattr(observer.processes, "read", lambda: SimpleNamespace(cpu_seconds=own * now[0]))
    monkeypatch.setattr(observer.cpu_time, "idle", lambda _cpus: idle * now[0])
    monkeypatch.setattr(observer.cpu_time, "throttled", lambda: None)
    monkeypatch.setattr(observer.cpu_time, "read", lambda _thread: CpuTime(now[0], queued * now[0]))
    monkeypatch.setattr(observer, "perf_counter", lambda: now[0])
    since = observer._Since(max(1, 8 // ranks), ranks)
    now[0] = 1.0
    return since


def test_a_summary_tells_the_load_of_the_machine(monkeypatch):
    monkeypatch.setattr(observer.os, "getloadavg", lambda: (3.5, 2.0, 1.0), raising=False)
    found = since_a_second(monkeypatch, 2.0, 1.0, 0.25).summary()
    assert found == CpuSummary(cpus=8, no_cpu_share=0.25, other_cpus=5.0, idle_cpus=2.0, load_average=3.5)
    ranks = since_a_second(monkeypatch, 1.0, 1.5, 0.0, ranks=4).summary()
    assert (ranks.cpus, ranks.other_cpus, ranks.idle_cpus) == (8, 1.0, 1.0)


def test_a_system_that_counts_nothing_has_no_load(monkeypatch):
    since = since_a_second(monkeypatch, 2.0, 1.0, 0.25)
    monkeypatch.delattr(observer.os, "getloadavg", raising=False)
    monkeypatch.setattr(observer.cpu_time, "idle", lambda _cpus: None)
    monkeypatch.setattr(observer.cpu_time, "read", lambda _thread: None)
    assert since.summary() is None
