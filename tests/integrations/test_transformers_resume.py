"""Checkpoints of the `Trainer`: trainer state, torn journals, a killed run, two ranks."""

import json
import signal

import pytest
from launching import python
from metric_keys import needing
from trainings import runs
from trainings.runs import numbers, opened, totals
from trainings.transformers_trainer import TransformersTraining
from transformers import Trainer, TrainerCallback

from perf_callbacks.kernel.records.fit_records import Run, Summary
from perf_callbacks.kernel.records.metric_table import DEVICES
from perf_callbacks.transformers import PerfCallback


class Stop(TrainerCallback):
    """Training ends after a step, as if it had been asked to."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **_):
        control.should_training_stop = state.global_step >= self.step


def fit(directory, *, until, steps=12, **options):
    """Train until a step, saving a checkpoint after every second step."""
    options = {"rows": 40, "save": 2, "callbacks": [Stop(until)]} | options
    return TransformersTraining(directory, steps=steps, **options).run().trainer


RESTORING = pytest.mark.parametrize("restoring", [False, True], ids=["", "callbacks restored"])


def test_a_second_fit_of_the_same_trainer_is_a_run_of_its_own(tmp_path):
    ours = PerfCallback()
    trainer = fit(tmp_path, ours=ours, until=4)
    trainer.train()
    first, second = opened(tmp_path)
    assert numbers(tmp_path) == [(1, 0)] * 2
    assert first.run_id != second.run_id
    assert totals(tmp_path) == [(16, 256)] * 2
    assert ours.summary.run_id == second.run_id


def test_the_same_trainer_resumes_as_another_would(tmp_path):
    ours = PerfCallback()
    trainer = fit(tmp_path, ours=ours, until=4)
    trainer.remove_callback(Stop)
    trainer.train(resume_from_checkpoint=True)
    assert numbers(tmp_path) == [(1, 0), (2, 4)]
    assert totals(tmp_path) == [(16, 256), (48, 768)]


def state_of(checkpoint):
    """What the trainer saved about itself, without our values and those of the clock."""
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    for line in state["log_history"]:
        for name in [name for name in line if name.startswith("perf/")]:
            del line[name]
    return state


@pytest.mark.filterwarnings("ignore:mtime may not be reliable")  # transformers 4, of checkpoints made within a second
@RESTORING
def test_a_resumed_run_ends_in_the_state_of_one_that_never_stopped(tmp_path, restoring):
    arguments, often = {"save_total_limit": 2}, {"steps": 8, "save": 4}
    fit(tmp_path / "whole", until=8, arguments=arguments, **often)
    fit(tmp_path / "parts", until=4, arguments=arguments, **often)
    arguments["restore_callback_states_from_checkpoint"] = restoring
    fit(tmp_path / "parts", until=8, resume=4, arguments=arguments, **often)
    whole, parts = [state_of(tmp_path / name / "checkpoint-8") for name in ("whole", "parts")]
    assert whole == parts
    assert "perf_callbacks" not in parts["stateful_callbacks"]
    assert [run.attempt for run in opened(tmp_path / "parts")] == [1, 2]


def test_a_checkpoint_of_the_model_alone_has_counters(tmp_path):
    fit(tmp_path, until=4, arguments={"save_only_model": True})
    trainer = fit(tmp_path, until=6, resume=4, arguments={"save_only_model": True})
    trainer.save_model(str(tmp_path / "model"))
    assert numbers(tmp_path) == [(1, 0), (2, 4)]
    assert not (tmp_path / "model" / "perf_callbacks.json").exists()


KILLED = """
import os, signal, sys
from trainings import models
from perf_callbacks.kernel.records import journal_file
from perf_callbacks.transformers import PerfCallback
from transformers import TrainerCallback

journal_file.SPACING_SECONDS = 0.0  # else it depends on the machine whether the step after the checkpoint is on disk

class Kill(TrainerCallback):
    def on_step_begin(self, args, state, control, **_):
        if state.global_step == 5:
            os.kill(os.getpid(), signal.SIGKILL)

arguments = models.training_arguments(sys.argv[1], max_steps=12, save_strategy="steps", save_steps=2)
models.trainer(arguments, PerfCallback(), Kill(), train_dataset=models.Tokens(40)).train()
"""


@pytest.mark.slow
def test_a_killed_run_goes_on_from_its_checkpoint(tmp_path):
    status, output = python("-c", KILLED, tmp_path)
    assert status == -signal.SIGKILL, output
    fit(tmp_path, until=8, resume=4)
    assert numbers(tmp_path) == [(1, 0), (2, 4)]
    assert len({run.run_id for run in opened(tmp_path)}) == 1
    assert runs.records(tmp_path, Summary, attempt=0) == []
    assert [step["step"] for step in runs.steps(tmp_path, attempt=0)] == [1, 2, 3, 4, 5], "beyond the checkpoint"
    (summary,) = runs.records(tmp_path, Summary)
    assert (summary.total_samples, summary.total_tokens) == (32, 512)


TWO_RANKS = """
import os, sys
from trainings import models
import torch
from perf_callbacks import PerfConfig
from perf_callbacks.transformers import PerfCallback

for steps in (2, 4):
    arguments = models.training_arguments(sys.argv[1], max_steps=steps, save_strategy="steps", save_steps=2)
    trainer = models.trainer(arguments, PerfCallback(PerfConfig(flops="off")), train_dataset=models.Tokens(40))
    trainer.train(resume_from_checkpoint=steps == 4)
torch.distributed.barrier()
os._exit(0)  # gloo's threads at times abort the interpreter's own way out
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(Trainer, "_run_epoch"),
    reason="transformers 4 can't resume on several CPU ranks: it asks torch for a device called cpu:0",
)
def test_two_ranks_that_resume_have_a_journal_each_and_log_rates_per_device(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TWO_RANKS)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2)
    status, output = python(*launcher, script, tmp_path, ACCELERATE_USE_CPU="true")
    assert status == 0, output
    for rank in range(2):
        (run,) = runs.records(tmp_path, Run, rank=rank)
        assert (run.rank, run.world_size, run.attempt, run.step) == (rank, 2, 2, 2)
        assert [step["samples"] for step in runs.steps(tmp_path, rank=rank)] == [4, 4]
    totals = [runs.records(tmp_path, Summary, rank=rank)[0].total_samples for rank in range(2)]
    assert totals == [16, None], "only rank 0 saves what it counted"
    saved = json.loads((tmp_path / "checkpoint-4" / "trainer_state.json").read_text())
    rates = {key for row in saved["log_history"] for key in row if key.startswith("perf/") and "_per_second" in key}
    assert rates == needing(DEVICES)
