"""`perf-callbacks try`, on programs with a framework, and on programs that a launcher starts."""

import sys

import pytest
from trial_kit import AT_ONCE, LOOP, by_remedy

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only /proc shows that no process of a trial is left")

SLOW = pytest.mark.slow


TRANSFORMERS = """
from trainings import models
def train(resume=None, callbacks=(), **arguments):
    arguments = {"max_steps": 10**5, "per_device_train_batch_size": 1, "logging_steps": 5} | arguments
    arguments = models.training_arguments("out", **arguments)
    models.trainer(arguments, *callbacks, eval_dataset=models.Tokens(2)).train(resume_from_checkpoint=resume)
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
from trainings import models
from trl import SFTConfig, SFTTrainer
from datasets import Dataset
rows = Dataset.from_list([{"input_ids": [1, 2, 3, 4], "labels": [1, 2, 3, 4]}] * 64)
config = models.training_arguments("out", kind=SFTConfig, max_steps=10**5, save_strategy="steps", save_steps=10,
    optim="adamw_torch", dataset_kwargs={"skip_prepare_dataset": True})
from transformers import PreTrainedTokenizerFast
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
words = {"<pad>": 0, "<eos>": 1}
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(WordLevel(words, "<pad>")), pad_token="<pad>", eos_token="<eos>"
)
SFTTrainer(model=models.llama(), args=config, train_dataset=rows, processing_class=tokenizer).train()
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
