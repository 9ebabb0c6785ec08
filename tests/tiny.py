"""Models and data small enough for any test, made on the spot: nothing is downloaded."""

from dataclasses import asdict
from pathlib import Path

import torch
from torch.utils.data import Dataset

from perf_callbacks.kernel.records.codec import attempts
from perf_callbacks.kernel.records.fit_records import Steps
from perf_callbacks.kernel.records.journal_file import read

VOCABULARY = 64


def llama(**config):
    """A Llama of one layer, the same each time."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    small = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "pad_token_id": 0,
    }
    return LlamaForCausalLM(LlamaConfig(**(small | config)))


class Tokens(Dataset):
    """Random token ids; `lengths` are used in turn, shorter rows are padded to the longest with the mask saying so."""

    def __init__(self, rows=22, lengths=(16,), *, mask=True):
        self.rows = rows
        self.lengths = lengths
        self.mask = mask

    def __len__(self):
        return self.rows

    def __getitem__(self, index):
        length, width = self.lengths[index % len(self.lengths)], max(self.lengths)
        ids = torch.randint(1, VOCABULARY, (width,), generator=torch.Generator().manual_seed(index))
        mask = (torch.arange(width) < length).long()
        ids = ids * mask
        item = {"input_ids": ids, "labels": ids.masked_fill(mask == 0, -100)}
        return item | {"attention_mask": mask} if self.mask else item


def training_arguments(directory, *, kind=None, **arguments):
    """Arguments of a short, quiet run on the CPU."""
    from transformers import TrainingArguments

    quiet = {
        "output_dir": str(directory),
        "per_device_train_batch_size": 4,
        "logging_steps": 1,
        "max_steps": 6,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 0,
    }
    return (kind or TrainingArguments)(**(quiet | arguments))


def trainer(arguments, *callbacks, kind=None, **options):
    """A Trainer of a Llama on random tokens, unless `options` say otherwise."""
    from transformers import Trainer

    usual = {"model": None, "train_dataset": Tokens(), "callbacks": list(callbacks)} | options
    return (kind or Trainer)(**usual | {"args": arguments, "model": usual["model"] or llama()})


def unwrapped(card):
    """The lines of a card before they were broken at its width."""
    return card.replace("\n    ", " ")


def records(directory, kind, *, attempt=-1, rank=0):
    """The records of one kind in one attempt of the journal that was written last; a logger may have one each time."""
    journals = Path(directory).rglob(f"rank{rank}.jsonl")
    journal = attempts(read(max(journals, key=lambda path: path.stat().st_mtime_ns)))
    return [entry.record for entry in journal[attempt] if isinstance(entry.record, kind)]


def steps(directory, **which):
    """The steps in the journal of one attempt, each as a mapping."""
    blocks = [
        {name: column for name, column in asdict(block).items() if column}
        for block in records(directory, Steps, **which)
    ]
    return [dict(zip(block, step, strict=True)) for block in blocks for step in zip(*block.values(), strict=True)]
