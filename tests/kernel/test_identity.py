"""The program, job and model in the record that opens a fit."""

import platform
from pathlib import Path

import jobs
import torch
from rows import each_row
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from perf_callbacks.journal import Run, read
from perf_callbacks.kernel.fit import identity
from perf_callbacks.kernel.settings.config import LONGEST_RECORDED


@each_row(
    ("arguments", "shown"),
    [
        (["--token", "abc123"], "--token '***'"),
        (["--hub-token=abc123"], "'--hub-token=***'"),
        (["wandb.api_key=abc123"], "'wandb.api_key=***'"),
        (["--aws_secret_access_key", "abc123"], "--aws_secret_access_key '***'"),
        (["--db_password", "--verbose"], "--db_password '***'"),
        (["{'api_key': 'abc123', 'lr': 1}"], """'{'"'"'api_key'"'"': ***, '"'"'lr'"'"': 1}'"""),
        (['{"password":"abc 123"}'], """'{"password":***}'"""),
        (["s3://me:abc123@host/data"], "'s3://***@host/data'"),
        (["--extra", "hf_abcdefghijklmnop"], "--extra '***'"),
    ],
)
def test_secrets_are_not_in_the_command_line(arguments, shown):
    assert identity.command_line(["train.py", *arguments]) == f"train.py {shown}"


@each_row(
    "arguments",
    [
        ["--max_tokens", "512"],
        ["--tokenizer", "gpt2"],
        ["max_tokens=512", "model.tokenizer=gpt2"],
        ["--key_dim", "64", "--author", "me"],
        ["--data", "s3://bucket/data"],
        ["--note", "two words"],
    ],
)
def test_other_arguments_are_in_the_command_line(arguments):
    shown = identity.command_line(["train.py", *arguments])
    assert "***" not in shown
    assert arguments[-1] in shown


def test_a_command_line_has_an_end():
    assert len(identity.command_line(["train.py", "x" * 100_000])) == LONGEST_RECORDED


@each_row(
    ("environment", "job"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "7", "TORCHELASTIC_RUN_ID": "abc"}, "7"),
        ({"TORCHELASTIC_RUN_ID": "abc"}, "abc"),
        ({"TORCHELASTIC_RUN_ID": "none"}, None),
        ({"PBS_JOBID": ""}, None),
    ],
)
def test_the_scheduler_names_the_job(environment, job):
    assert identity.job_id(environment) == job


def test_parameters_are_counted_only_if_whole():
    model = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 1))
    assert identity.parameters(model) == 4 * 2 + 2 + 2 + 1
    tied = nn.Sequential(model[0], model[0])
    assert identity.parameters(tied) == 10
    assert identity.parameters(nn.LazyLinear(3)) is None
    model[1]._is_fsdp_managed_module = True
    assert identity.parameters(model) is None
    model[0].weight.ds_numel = 800  # of DeepSpeed, which holds a part
    assert identity.parameters(model[0]) == 802


def test_the_batch_size_is_known_if_all_loaders_agree():
    eight = DataLoader(torch.ones(16, 2), batch_size=8)
    sampled = DataLoader(
        torch.ones(16, 2), batch_sampler=BatchSampler(SequentialSampler(range(16)), 4, drop_last=False)
    )
    assert identity.batch_size([eight]) == 8
    assert identity.batch_size([sampled]) == 4
    assert identity.batch_size([eight, sampled]) is None
    assert identity.batch_size([]) is None
    assert identity.batch_size([[1, 2]]) is None


def test_a_model_is_named_without_its_wrappers():
    model = nn.Linear(1, 1)
    assert identity.model_name(torch.compile(nn.DataParallel(model), backend="eager")) == "Linear"
    assert identity.model_name(nn.DataParallel(nn.Sequential())) == "Sequential"
    assert identity.model_name(nn.Sequential(model)) == "Sequential"


def test_a_setup_that_raises_leaves_the_batch_out():
    def setup():
        raise RuntimeError

    assert identity.of_training(nn.Linear(1, 1), setup) == {"model": "Linear", "parameters": 2}


PROGRAM = """
import torch
from perf_callbacks import PerfConfig
from perf_callbacks.loop import measure

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2)
with measure(model=model, optimizer=optimizer, loader=loader, config=PerfConfig(output_dir="out")) as perf:
    for batch in perf.loader:
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_journal_names_program_machine_and_job(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    words = ["--hf_token", "abc123", "--lr", "0.1"]
    assert jobs.run(program, *words, imports=("torch._dynamo",), directory=tmp_path, SLURM_JOB_ID="4711")[0] == 0
    (run,) = [entry.record for entry in read(tmp_path / "out") if isinstance(entry.record, Run)]
    assert (run.program, run.command_line) == (str(program), f"{program} --hf_token '***' --lr 0.1")
    assert (Path(run.directory or ""), run.host, run.job_id) == (tmp_path, platform.node(), "4711")
    assert (run.model, run.parameters, run.batch) == ("Linear", 5, 2)
    assert b"abc123" not in (tmp_path / "out" / "perf_callbacks" / "rank0.jsonl").read_bytes()
