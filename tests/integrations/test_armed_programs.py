"""Unmodified programs, each run as a user would: measured once, in the process that trains, steps counted exactly."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from datasets import Dataset
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from trainings import models, runs
from transformers import PreTrainedTokenizerFast

import perf_callbacks
from perf_callbacks.kernel.records.fit_records import Run, Summary
from perf_callbacks.launch import autoload

PATH = os.pathsep.join([str(Path(perf_callbacks.__file__).parents[1]), str(Path(models.__file__).parents[1])])
RUN = ("-m", "perf_callbacks.run")
RANKS = ("-m", "torch.distributed.run", "--nproc_per_node", "2")

TRAINER = """
import transformers
from trainings import models
if __name__ == "__main__":
    trainer = models.trainer(models.training_arguments("out", max_steps=4, logging_steps=2))
    trainer.train()
    trainer.save_state()
"""
LOOP = """
import accelerate, torch

def main():
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4, project_dir="out")
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    training, validation = (torch.utils.data.DataLoader(torch.randn(rows, 4), batch_size=4) for rows in (68, 16))
    model, optimizer, training, validation = accelerator.prepare(model, optimizer, training, validation)
    for _ in range(3):
        model.train()
        for batch in training:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch).sum())
                optimizer.step()
                optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            for batch in validation:
                model(batch)

if __name__ == "__main__":
    main()
"""
ORDER = """
import transformers.trainer, accelerate.accelerator
print(transformers.trainer.CallbackHandler.on_init_end.__wrapped__.__qualname__)
print(accelerate.accelerator.Accelerator.__init__.__wrapped__.__qualname__)
"""


def program(directory, *words, **environ):
    """Run Python in a directory; its complaints are for the reader of a failed test."""
    environ = {**os.environ, "PYTHONPATH": PATH, "PERF_CALLBACKS_MEASURE_PEAK": "off", **environ}
    done = subprocess.run(
        [sys.executable, *words], cwd=directory, env=environ, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert autoload.NOTHING_MEASURED not in done.stderr
    return done.stdout


def measured(directory, ranks=1):
    """Tell for each rank which integration measured it, and how many steps."""
    found = []
    for rank in range(ranks):
        (run,), (summary,) = (runs.records(directory, kind, rank=rank) for kind in (Run, Summary))
        found.append((run.door, summary.steps, summary.failure))
    return found


@pytest.mark.slow
def test_a_trainer(tmp_path):
    (tmp_path / "train.py").write_text(TRAINER)
    program(tmp_path, *RUN, "train.py")
    assert measured(tmp_path) == [("transformers", 4, None)]
    history = json.loads((tmp_path / "out" / "trainer_state.json").read_text())["log_history"]
    assert "perf/step_time" in history[1]


@pytest.mark.slow
def test_a_loop_on_two_ranks_that_never_says_that_it_has_ended(tmp_path):
    (tmp_path / "train.py").write_text(LOOP)
    said = program(tmp_path, *RANKS, *RUN, "train.py")
    # 17 batches make 9 on each of two ranks, and these 3 steps in each of 3 epochs.
    assert measured(tmp_path, ranks=2) == [("accelerate", 9, None)] * 2
    assert said.count(" 9 steps, ") == 1


@pytest.mark.slow
def test_a_command_that_trains_in_a_process_of_its_own(tmp_path):
    words = {"<pad>": 0, "<eos>": 1, "<unk>": 2} | {f"w{number}": number for number in range(3, models.VOCABULARY)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(tmp_path / "model")
    models.llama().save_pretrained(tmp_path / "model")
    Dataset.from_list([{"text": "w3 w4 w5 w6"}] * 16).to_json(tmp_path / "data" / "train.jsonl")
    flags = "--output_dir out --max_steps 3 --report_to none --use_cpu --bf16 False --gradient_checkpointing False"
    command = Path(sys.executable).with_name("trl")
    program(tmp_path, *RUN, command, "sft", "--model_name_or_path", "model", "--dataset_name", "data", *flags.split())
    assert measured(tmp_path) == [("transformers", 3, None)]


@pytest.mark.slow
@pytest.mark.parametrize("first", ["from transformers import Trainer", "from accelerate import Accelerator"])
def test_whatever_is_imported_first(tmp_path, first):
    (tmp_path / "order.py").write_text(first + ORDER + "import perf_callbacks.session")
    assert program(tmp_path, *RUN, "order.py") == "CallbackHandler.on_init_end\nAccelerator.__init__\n"
