"""Models, data and a trainer small enough for any test, made on the spot: nothing is downloaded."""

import torch
from torch import nn
from torch.utils.data import Dataset

VOCABULARY = 64
WIDTH = 4


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


class Numbers(Dataset):
    """Rows of numbers, the same each time."""

    def __init__(self, rows=24):
        self.rows = rows

    def __len__(self):
        return self.rows

    def __getitem__(self, index):
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(index))


class Rows(Numbers):
    """Each row calls a function with its place."""

    def __init__(self, at, place, rows):
        super().__init__(rows)
        self.at, self.place = at, place

    def __getitem__(self, index):
        self.at(self.place)
        return super().__getitem__(index)


class Batches:
    """An iterable of batches, which is no `DataLoader`."""

    def __init__(self, at, batches):
        self.at, self.batches = at, batches

    def __iter__(self):
        for seed in range(self.batches):
            self.at("an iterable")
            yield torch.rand(4, WIDTH, generator=torch.Generator().manual_seed(seed))


class Model(nn.Module):
    """A model that calls a function at its places."""

    def __init__(self, at):
        super().__init__()
        self.linear, self.dropout, self.at = nn.Linear(WIDTH, WIDTH), nn.Dropout(), at
        self.register_forward_pre_hook(lambda *_: None)
        self.linear.weight.register_hook(lambda _: at("a gradient"))

    def forward(self, inputs):
        self.at("the model" if self.training else "the model in evaluation")
        if self.training:
            self.at("a collection")
        return self.dropout(self.linear(inputs))


class Optimizer(torch.optim.SGD):
    """An optimizer that calls a function at its places."""

    def __init__(self, model, at):
        super().__init__(model.parameters(), lr=0.1)
        self.at = at
        self.register_step_post_hook(lambda *_: None)

    def step(self, closure=None):
        self.at("the optimizer")
        return super().step(closure)

    def zero_grad(self, set_to_none=True):  # noqa: FBT002 as in torch
        self.at("zero_grad")
        super().zero_grad(set_to_none)
