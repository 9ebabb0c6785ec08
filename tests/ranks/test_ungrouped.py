"""Processes of torchrun without a process group: rank 0 says so once, and only where it is true."""

import sys
import types

import pytest
import torch
from fakes import FakeClock
from launching import free_port, python

from perf_callbacks import PerfConfig
from perf_callbacks.kernel.fit.location import FitLocation
from perf_callbacks.kernel.fit.recorder import Recorder
from perf_callbacks.kernel.fit.training_objects import FitContext
from perf_callbacks.kernel.settings.resolution import resolve
from perf_callbacks.ranks import ungrouped

SAID = (
    "perf_callbacks: torchrun started 2 processes, but they don't train together: each trains a model of its own, "
    "and figures are those of one process. Try "
)
JOB = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2", "RANK": "0"}


@pytest.fixture
def fit(tmp_path, monkeypatch):
    """Begins fits as in a process of this environment."""
    begun = []
    monkeypatch.setattr(ungrouped, "FORMED", set())

    def begin(*, environ=JOB, world_size=1, integration="loop"):
        for name in JOB:
            monkeypatch.delenv(name, raising=False)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        place = FitLocation(
            integration=integration,
            directory=tmp_path,
            device=torch.device("cpu"),
            world_size=world_size,
        )
        recorder = Recorder(resolve(PerfConfig(journal=False, window=5), {}), place, clock=FakeClock())
        begun.append(recorder)
        watch = ungrouped.begin(recorder, FitContext(model=None))
        if watch is not None:
            recorder.observe(watch)
        return recorder, watch

    yield begin
    for recorder in begun:
        recorder.close()


def steps(recorder, number):
    for _ in range(number):
        recorder.clock.now += 1.0
        recorder.end_step(recorder.step + 1)


@pytest.mark.parametrize(
    ("integration", "remedy"), [("loop", "torch.distributed.init_process_group()"), ("lightning", "Trainer(devices=")]
)
def test_after_the_first_window_rank_0_says_so_once(fit, caplog, integration, remedy):
    recorder, _ = fit(integration=integration)
    steps(recorder, 4)
    assert caplog.messages == []
    steps(recorder, 20)
    recorder.close()
    assert [text[: len(SAID)] for text in caplog.messages] == [SAID]
    assert remedy in caplog.text


def test_a_shorter_fit_says_so_at_its_end(fit, caplog):
    recorder, _ = fit()
    steps(recorder, 2)
    recorder.close()
    assert [text[: len(SAID)] for text in caplog.messages] == [SAID]


def test_a_fit_without_steps_says_nothing(fit, caplog):
    recorder, _ = fit()
    recorder.close("ValueError: no data")
    assert caplog.messages == []


@pytest.mark.parametrize(
    "environ",
    [
        {},
        JOB | {"WORLD_SIZE": "1"},
        JOB | {"WORLD_SIZE": "two"},
        JOB | {"RANK": "1"},
        {"SLURM_NTASKS": "8", "SLURM_ARRAY_TASK_ID": "3", "RANK": "0", "WORLD_SIZE": "8"},
    ],
    ids=["no launcher", "one process", "no number", "another rank", "without torchrun"],
)
def test_where_torchrun_started_no_job_nothing_is_watched(fit, environ):
    assert fit(environ=environ)[1] is None


def test_a_job_with_a_group_is_not_watched(fit):
    assert fit(world_size=2)[1] is None


def test_a_fit_on_rank_0_after_the_job_is_not_watched(fit, monkeypatch):
    fit(world_size=2)
    assert fit()[1] is None
    monkeypatch.setattr(ungrouped, "FORMED", set())
    recorder, _ = fit()
    with monkeypatch.context() as grouped:
        grouped.setattr(torch.distributed, "is_initialized", lambda: True)
        steps(recorder, 1)
    assert fit()[1] is None


@pytest.mark.parametrize("at", [0, 3], ids=["before the first step", "later"])
def test_a_group_that_is_formed_later_is_seen(fit, caplog, monkeypatch, at):
    recorder, _ = fit()
    steps(recorder, at)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    steps(recorder, 1)
    if at == 0:  # it may be gone at the end
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)
    steps(recorder, 10)
    recorder.close()
    assert caplog.messages == []


@pytest.mark.parametrize("integration", ["transformers", "accelerate"])
def test_a_framework_that_counts_one_process_trains_alone_beside_a_group(fit, caplog, monkeypatch, integration):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    recorder, _ = fit(integration=integration)
    steps(recorder, 5)
    recorder.close()
    assert [text[: len(SAID)] for text in caplog.messages] == [SAID]
    assert "which a job on CPUs needs" in caplog.text


@pytest.mark.parametrize("library", ["horovod", "torch.distributed.rpc.api"])
def test_groups_of_another_kind_are_groups(fit, caplog, monkeypatch, library):
    found = types.ModuleType(library)
    found._is_current_rpc_agent_set = lambda: True
    monkeypatch.setitem(sys.modules, library, found)
    recorder, _ = fit()
    steps(recorder, 10)
    recorder.close()
    assert caplog.messages == []


SCRIPT = """
import sys
import torch
from perf_callbacks import PerfConfig
from perf_callbacks.loop import measure
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
config = PerfConfig(output_dir=sys.argv[1], window=5)
if sys.argv[2] == "before":
    torch.distributed.init_process_group("gloo")
with measure(model=model, optimizer=optimizer, loader=[torch.ones(2, 4)] * 12, config=config) as perf:
    if sys.argv[2] == "within":
        torch.distributed.init_process_group("gloo")
    for batch in perf.loader:
        model(batch).sum().backward()
        optimizer.step()
if sys.argv[2] != "never":
    torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("when", "times"), [("never", 1), ("before", 0), ("within", 0)])
def test_two_processes_of_torchrun(tmp_path, when, times):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", str(free_port())]
    status, said = python(*launcher, script, tmp_path / "out", when, cwd=tmp_path)
    assert status == 0, said
    assert said.count("don't train together") == times, said


TRAINERS = {
    "transformers": """
import sys
import torch
from transformers import Trainer, TrainingArguments
from perf_callbacks.transformers import PerfCallback
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
    def forward(self, x):
        return {"loss": self.layer(x).sum()}
options = {"use_cpu": True} if sys.argv[2] == "together" else {}
arguments = TrainingArguments(sys.argv[1], max_steps=3, report_to=[], save_strategy="no", **options)
Trainer(Net(), arguments, train_dataset=[{"x": torch.ones(4)}] * 64, callbacks=[PerfCallback()]).train()
""",
    "accelerate": """
import sys
import torch
from accelerate import Accelerator
from perf_callbacks import PerfConfig
from perf_callbacks.accelerate import attach
accelerator = Accelerator(cpu=sys.argv[2] == "together")
attach(accelerator, PerfConfig(output_dir=sys.argv[1]))
model = torch.nn.Linear(4, 4)
loader = torch.utils.data.DataLoader(torch.ones(12, 4), batch_size=2)
model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
for batch in loader:
    accelerator.backward(model(batch).sum())
    optimizer.step()
    optimizer.zero_grad()
accelerator.end_training()
""",
}


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU, accelerate doesn't choose the CPU")
@pytest.mark.parametrize(("how", "times"), [("by default", 1), ("together", 0)])
@pytest.mark.parametrize("door", TRAINERS)
def test_trainers_of_torchrun_on_cpus(tmp_path, door, how, times):
    """accelerate forms a process group in both, but trains together only if the CPU was asked for."""
    script = tmp_path / "train.py"
    script.write_text(TRAINERS[door], encoding="utf-8")
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", str(free_port())]
    status, said = python(*launcher, script, tmp_path / "out", how, cwd=tmp_path)
    assert status == 0, said
    assert said.count("don't train together") == times, said
