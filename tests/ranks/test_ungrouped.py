"""Processes of torchrun without a process group: rank 0 says so once, and only where it is true."""

import sys
import types

import pytest
import torch
from fakes import FakeClock
from jobs import IMPORTS, Job
from rows import each_row

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


@each_row(
    "environ",
    [
        {},
        JOB | {"WORLD_SIZE": "1"},
        JOB | {"WORLD_SIZE": "two"},
        JOB | {"RANK": "1"},
        {"SLURM_NTASKS": "8", "SLURM_ARRAY_TASK_ID": "3", "RANK": "0", "WORLD_SIZE": "8"},
    ],
)
def test_a_process_that_torchrun_started_in_no_job_is_not_watched(fit, environ):
    assert fit(environ=environ)[1] is None


def test_a_fit_on_rank_0_after_the_job_is_not_watched(fit, monkeypatch):
    assert fit(world_size=2)[1] is None
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
def test_a_framework_that_counts_itself_trains_alone_beside_a_group(fit, caplog, monkeypatch, integration):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    recorder, _ = fit(integration=integration)
    steps(recorder, 5)
    recorder.close()
    assert [text[: len(SAID)] for text in caplog.messages] == [SAID]
    assert "which a job on CPUs needs" in caplog.text


@pytest.mark.parametrize("library", ["horovod", "torch.distributed.rpc.api"])
def test_groups_of_another_kind_are_groups(fit, caplog, monkeypatch, library):
    module = types.ModuleType(library)
    module._is_current_rpc_agent_set = lambda: True
    monkeypatch.setitem(sys.modules, library, module)
    recorder, _ = fit()
    steps(recorder, 10)
    recorder.close()
    assert caplog.messages == []


PROGRAMS = {
    "transformers": """
from jobs.rank import plan
from transformers import Trainer, TrainingArguments
from perf_callbacks.transformers import PerfCallback
from trainings import models
arguments = TrainingArguments(plan()["directory"], max_steps=3, report_to=[], save_strategy="no")
Trainer(models.llama(), arguments, train_dataset=models.Tokens(64), callbacks=[PerfCallback()]).train()
""",
    "accelerate": """
import torch
from accelerate import Accelerator
from jobs.rank import plan
from perf_callbacks import PerfConfig
from perf_callbacks.accelerate import attach
accelerator = Accelerator()
attach(accelerator, PerfConfig(output_dir=plan()["directory"]))
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
@pytest.mark.parametrize("door", PROGRAMS)
def test_two_processes_of_torchrun_without_a_gpu_train_alone(tmp_path, door):
    """accelerate forms a process group, but trains together only if the CPU was asked for, as other jobs do here."""
    environ = {"TORCHELASTIC_RUN_ID": "none"}
    job = Job(PROGRAMS[door], tmp_path, imports=IMPORTS[door], environ=environ).to_its_end()
    assert sum([(job.errors(rank) + job.output(rank)).count("don't train together") for rank in range(2)]) == 1
