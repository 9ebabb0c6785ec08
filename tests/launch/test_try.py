"""`perf-callbacks try`, on real programs."""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from launching import program_environ
from trial_kit import AT_ONCE, LOOP, files, processes

from perf_callbacks import commands
from perf_callbacks.launch import tries

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only /proc shows that no process of a trial is left")

QUICK = ("--json", "--seconds", "0.2", "--steps", "5", "--rounds", "1")


@pytest.fixture
def scratch(monkeypatch):
    """A temporary directory of the trials, with a short name, because sockets in it may not have a long one."""
    directory = tempfile.mkdtemp(prefix="t-")
    monkeypatch.setattr(tempfile, "tempdir", directory)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def tried(monkeypatch, capsys, tmp_path, scratch):
    """Tries a program, and returns the status, the result and the complaints. A trial leaves no file and no process."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    for name, value in program_environ(XDG_CACHE_HOME=str(tmp_path / "cache")).items():
        monkeypatch.setenv(name, value)

    def run(source, *words, before=(), after=(), writes=False):
        (work / "train.py").write_text(source)
        found = files(work)
        status = commands.main(["try", *QUICK, *before, *(words or ("train.py",)), *after])
        said = capsys.readouterr()
        assert processes(scratch) == {}
        assert [*Path(scratch).iterdir()] == []
        assert writes or files(work) == found
        return status, json.loads(said.out) if said.out else None, said.err

    return run


def by_remedy(result):
    return {one["remedy"] or one["setting"]: one for one in result["settings"]}


def test_a_plain_loop_is_tried(tried):
    status, result, complaints = tried(AT_ONCE + LOOP + "train()\n", before=("--only", "optimizer"))
    assert status == 0, complaints
    found = by_remedy(result)
    assert [*found] == ["as it is", "optimizer"]
    assert found["optimizer"]["loss"] in {"the same", "close"}
    assert found["optimizer"]["faster"] > 0
    assert (result["failed"], result["interrupted"], result["launches"]) == ({}, False, 2)


REFUSED = {
    "a crash": ("raise ValueError('no data')", "the program ended with status 1: ", "ValueError: no data"),
    "no training": ("print('nothing')", "made no step with an optimizer of torch", ""),
    "a log file": ("open('train.log', 'a').write('line')", "writes train.log, at train.py:", "With --yes"),
    "a new directory": ("import os; os.makedirs('runs/1', exist_ok=True)", "writes runs", ""),
    "a removed file": ("import os; os.remove('train.py')", "writes train.py", ""),
    "a data base": ("import sqlite3; sqlite3.connect('a.db')", "writes a.db", ""),
    "a forked worker that writes": (
        "import os, time; os.fork() or open('a.log', 'w'); time.sleep(60)", "writes a.log", "",
    ),
    "a child that writes": (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', \"open('a.log', 'w')\"])", "writes a.log", "",
    ),
    "standard input": ("input()", "status 1: ", "EOFError"),
}  # fmt: skip


@pytest.mark.parametrize("program", REFUSED)
def test_a_program_that_cannot_be_tried_is_refused(tried, program):
    source, *parts = REFUSED[program]
    status, result, complaints = tried(source)
    assert (status, result) == (1, None)
    assert [part for part in parts if part not in complaints] == []


ALLOWED = """
import os, shutil, sqlite3, tempfile
os.makedirs(".", exist_ok=True)
with tempfile.TemporaryDirectory() as directory:
    open(os.path.join(directory, "file"), "w").close()
    os.makedirs(os.path.join(directory, "a/b"))
sqlite3.connect(":memory:")
sqlite3.connect("file:a.db?mode=memory", uri=True)
open("train.py").close()
open(os.devnull, "w").close()
print("through", flush=True)
raise SystemExit(3)
"""


def test_a_program_that_writes_to_temporary_files_is_not_refused(tried):
    assert "the program ended with status 3: through" in tried(ALLOWED)[2]


def test_an_interpreter_that_is_not_watched_is_not_started(tried):
    status, _, complaints = tried("open('a.log', 'w')", sys.executable, "-I", "train.py")
    assert status == 1
    assert "python -I doesn't import sitecustomize" in complaints


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--rounds", "0", "train.py"], "--rounds: got 0, wanted a number above 0."),
        (["--seconds", "nan", "train.py"], "--seconds: got nan, wanted a number above 0."),
        (["--only", "loader,fast", "train.py"], "--only: got fast, wanted some of loader, "),
        (["nowhere.py"], "there is no file and no command named nowhere.py."),
        ([], "nothing to try."),
    ],
)
def test_an_input_that_makes_no_sense(capsys, monkeypatch, tmp_path, words, complaint):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert commands.main(["try", *words]) == 2
    assert complaint in capsys.readouterr().err


SLOW = pytest.mark.slow


@SLOW
@pytest.mark.parametrize("ending", ["", "torch.save({}, 'model.pt')\n", "raise ValueError('boom')\n"])
def test_a_program_that_is_too_short(tried, ending):
    status, _, complaints = tried(AT_ONCE + LOOP + "train(steps=12)\n" + ending)
    assert status == 1
    told = {"": "only 12 steps", "t": "writes model.pt", "r": "ValueError: boom"}[ending[:1]]
    assert told in complaints


@SLOW
def test_a_crash_within_a_measured_loop_is_a_crash(tried):
    crash = "def stop(step):\n    if step == 60: raise ValueError('boom')\n"
    source = AT_ONCE.replace("0.0", "1000.0") + LOOP + crash + "train(each=stop)\n"
    assert "ValueError: boom" in tried(source)[2]


@SLOW
def test_a_log_file_is_written_with_yes_only(tried, tmp_path):
    source = AT_ONCE + LOOP + "log = open('train.log', 'a')\nlog.write('one')\nlog.flush()\ntrain()\n"
    (tmp_path / "work" / "train.log").write_text("old")
    assert "writes train.log, at train.py:" in tried(source)[2]
    status, result, _ = tried(source, before=("--yes", "--only", "optimizer"), writes=True)
    assert status == 0
    assert (tmp_path / "work" / "train.log").read_text() == "old" + "one" * (result["launches"] + 1)


@SLOW
def test_saves_do_nothing_with_yes(tried):
    saving = """
import safetensors.torch
def save(step):
    torch.save({"a": 1}, "model.pt")
    safetensors.torch.save_file({"a": torch.ones(2)}, "model.safetensors")
train(each=save)
"""
    assert "writes model.pt, at train.py:" in tried(AT_ONCE + LOOP + saving)[2]
    status, result, _ = tried(AT_ONCE + LOOP + saving, before=("--yes", "--only", "optimizer"))
    assert (status, result["failed"]) == (0, {})


@SLOW
def test_a_change_that_could_not_be_made_is_no_gain(tried):
    source = AT_ONCE + LOOP + "train(torch.optim.Adadelta)\n"
    status, result, _ = tried(source, before=("--only", "optimizer"))
    assert status == 0
    assert result["failed"] == {"optimizer: fused": "nothing in the program could be changed"}
    assert [*by_remedy(result)] == ["as it is"]


@SLOW
def test_two_rounds_have_intervals_and_settings_together(tried):
    rows = LOOP.replace("        return torch.full", "        time.sleep(0.002)\n        return torch.full")
    status, result, _ = tried(AT_ONCE + rows + "train()\n", before=("--rounds", "2", "--only", "loader,threads"))
    assert status == 0
    found = by_remedy(result)
    assert found["workers"]["low"] < found["workers"]["faster"] < found["workers"]["high"]
    assert [len(one["step_seconds"]) for one in result["settings"]] == [2] * len(result["settings"])


HANGING = """
class Hangs(Rows):
    def __getitem__(self, index):
        if torch.utils.data.get_worker_info():
            time.sleep(1000)
        return super().__getitem__(index)
Rows = Hangs if False else Rows
loading = DataLoader.__init__
def init(self, dataset, *args, **kwargs):
    loading(self, dataset, *args, **kwargs)
    if self.num_workers:
        self.dataset.__class__ = Hangs
DataLoader.__init__ = init
train()
"""


@SLOW
def test_a_setting_that_hangs_is_told_and_the_others_go_on(tried, monkeypatch):
    monkeypatch.setattr(tries, "LEAST_PATIENCE_SECONDS", 1.0)
    monkeypatch.setattr(tries, "PATIENCE", 3.0)
    status, result, _ = tried(AT_ONCE + LOOP + HANGING, before=("--only", "loader,optimizer"))
    assert status == 0
    assert [why.startswith("no end after") for why in result["failed"].values()] == [True]
    assert [*by_remedy(result)] == ["as it is", "optimizer"]


@SLOW
def test_two_optimizers(tried):
    source = """
g, d = nn.Linear(4, 4), nn.Linear(4, 1)
first, second = torch.optim.Adam(d.parameters()), torch.optim.Adam(g.parameters())
while True:
    (d(torch.ones(8, 4)) - d(g(torch.randn(8, 4)).detach())).mean().backward()
    first.step()
    first.zero_grad()
    d(g(torch.randn(8, 4))).mean().backward()
    second.step()
    second.zero_grad()
"""
    status, result, _ = tried(AT_ONCE + LOOP + source, before=("--only", "optimizer"))
    assert (status, [*by_remedy(result)]) == (0, ["as it is", "optimizer"])


@SLOW
def test_a_program_with_its_own_callback_keeps_its_settings(tried):
    source = """
import os
from perf_callbacks import PerfConfig
from perf_callbacks.loop import measure
net = nn.Linear(4, 1)
optimizer = torch.optim.AdamW(net.parameters())
with measure(model=net, optimizer=optimizer, config=PerfConfig(gc="freeze")) as perf:
    for step in range(10**6):
        net(torch.ones(2, 4)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if "PERF_CALLBACKS_FLOPS" in os.environ:  # not in the probe
            assert "PERF_CALLBACKS_GC" not in os.environ, "changed"
"""
    status, result, complaints = tried(AT_ONCE + LOOP + source, before=("--only", "gc,optimizer"))
    assert status == 0, complaints
    assert [*by_remedy(result)] == ["as it is", "optimizer"]
    assert result["failed"] == {}


@SLOW
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_prints_what_is_known(tmp_path, scratch, number):
    (tmp_path / "train.py").write_text(AT_ONCE + LOOP + "train()\n")
    words = ["--steps", "5", "--seconds", "0.2", "--only", "optimizer,gc", "train.py"]
    process = subprocess.Popen(
        [sys.executable, "-m", "perf_callbacks", "try", *words],
        cwd=tmp_path,
        env=program_environ(TMPDIR=scratch, XDG_CACHE_HOME=str(tmp_path / "cache")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while process.poll() is None and "3" not in processes(scratch).values():
            time.sleep(0.05)
        process.send_signal(number)
        process.send_signal(number)
        output, complaints = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, complaints
    assert "as it is" in output
    assert output.endswith("interrupted.\n")
    assert processes(scratch) == {}
    assert [*Path(scratch).iterdir()] == []


TRANSFORMERS = """
import tiny
def train(resume=None, callbacks=(), **arguments):
    arguments = {"max_steps": 10**5, "per_device_train_batch_size": 1, "logging_steps": 5} | arguments
    arguments = tiny.training_arguments("out", **arguments)
    tiny.trainer(arguments, *callbacks, eval_dataset=tiny.Tokens(2)).train(resume_from_checkpoint=resume)
"""


@SLOW
def test_a_transformers_program_that_saves_saves_nothing(tried, tmp_path):
    (tmp_path / "work" / "out").mkdir()
    (tmp_path / "work" / "out" / "kept").touch()
    source = f"""{AT_ONCE}{TRANSFORMERS}
from transformers import EarlyStoppingCallback
train(save_strategy="steps", save_steps=10, eval_strategy="steps", eval_steps=10, load_best_model_at_end=True,
      report_to="tensorboard", push_to_hub=True, callbacks=[EarlyStoppingCallback(10**6)])
"""
    status, result, complaints = tried(source, before=("--only", "gc"))
    assert (status, [*by_remedy(result or {"settings": []})]) == (0, ["as it is", "gc"]), complaints


@SLOW
def test_a_transformers_program_that_resumes(tried):
    source = AT_ONCE + TRANSFORMERS + "train(resume='out/checkpoint-10')\n"
    assert "resumes from a checkpoint at train.py:" in tried(source)[2]
    status, _, complaints = tried(source, before=("--yes", "--only", "gc"))
    assert status == 0, complaints


LIGHTNING = """
import torch
from lightning import pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger

class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, _):
        loss = self.layer(batch).square().mean()
        self.log("loss", loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

trainer = pl.Trainer(
    max_steps=10**5, accelerator="cpu", devices=1, logger=TensorBoardLogger("logs"), enable_progress_bar=False,
    callbacks=[ModelCheckpoint("saved", every_n_train_steps=10)],
)
trainer.fit(Net(), torch.utils.data.DataLoader(torch.ones(10**5, 4), batch_size=2))
"""


@SLOW
def test_a_lightning_program_saves_nothing(tried):
    status, result, complaints = tried(AT_ONCE + LIGHTNING, before=("--only", "optimizer"))
    assert (status, [*by_remedy(result or {"settings": []})]) == (0, ["as it is", "optimizer"]), complaints


ACCELERATE = """
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
accelerator = Accelerator(cpu=True, project_config=ProjectConfiguration("project", automatic_checkpoint_naming=True))
net = nn.Linear(8, 1)
net, optimizer, loader = accelerator.prepare(
    net, torch.optim.AdamW(net.parameters()), DataLoader(Rows(), batch_size=2)
)
for step, batch in enumerate(loader):
    accelerator.backward(net(batch).mean())
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 0:
        accelerator.save_state(WHERE)
"""


@SLOW
def test_an_accelerate_program_saves_nothing(tried):
    named = AT_ONCE + LOOP + ACCELERATE.replace("WHERE", "'state'")
    assert "writes state, at train.py:" in tried(named)[2]
    unnamed = AT_ONCE + LOOP + ACCELERATE.replace("WHERE", "")
    for source, words in ((named, ("--yes",)), (unnamed, ())):
        status, result, complaints = tried(source, before=(*words, "--only", "optimizer"))
        assert (status, [*by_remedy(result or {"settings": []})]) == (0, ["as it is", "optimizer"]), complaints


@SLOW
def test_a_trl_program(tried):
    source = """
import tiny
from trl import SFTConfig, SFTTrainer
from datasets import Dataset
rows = Dataset.from_list([{"input_ids": [1, 2, 3, 4], "labels": [1, 2, 3, 4]}] * 64)
config = tiny.training_arguments("out", kind=SFTConfig, max_steps=10**5, save_strategy="steps", save_steps=10,
    optim="adamw_torch", dataset_kwargs={"skip_prepare_dataset": True})
from transformers import PreTrainedTokenizerFast
from tokenizers import Tokenizer, models
words = {"<pad>": 0, "<eos>": 1}
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(models.WordLevel(words, "<pad>")), pad_token="<pad>", eos_token="<eos>"
)
SFTTrainer(model=tiny.llama(), args=config, train_dataset=rows, processing_class=tokenizer).train()
"""
    status, result, complaints = tried(AT_ONCE + source, before=("--only", "optimizer"))
    assert (status, [*by_remedy(result or {"settings": []})]) == (0, ["as it is", "optimizer"]), complaints


@SLOW
def test_ranks_of_torchrun_are_gone_afterwards(tried):
    source = """
import torch.distributed as dist
dist.init_process_group("gloo")
net = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.AdamW(net.parameters())
for x in DataLoader(Rows(), batch_size=4, num_workers=1):
    net(x).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    words = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py")
    source = AT_ONCE + LOOP + source
    status, result, complaints = tried(source, *words, before=("--only", "optimizer"))
    assert (status, [*by_remedy(result or {"settings": []})]) == (0, ["as it is", "optimizer"]), complaints


@SLOW
def test_a_package_and_arguments(tried, tmp_path):
    package = tmp_path / "work" / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text(
        AT_ONCE + LOOP + "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--lr')\n"
        "if __name__ == '__main__':\n    assert parser.parse_args().lr == '1'\n    train(num_workers=1)\n"
    )
    status, result, complaints = tried("", "-m", "package.train", "--lr", "1", before=("--only", "optimizer"))
    assert (status, result and result["failed"]) == (0, {}), complaints
