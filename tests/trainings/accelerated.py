"""Loops with Accelerate as people write them, small enough for any test."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from trainings.models import Tokens, llama


class Tracker:
    """Keeps what it is told to log."""

    name = "kept"

    def __init__(self):
        self.rows = []

    def log(self, values, step=None, **_):
        self.rows.append((step, values))

    def finish(self):
        pass


def an_accelerator(directory, **options):
    accelerator = Accelerator(cpu=True, project_dir=str(directory), **options)
    accelerator.trackers = [Tracker()]
    return accelerator


def evaluate(model, loader):
    model.eval()
    for batch in loader:
        with torch.no_grad():
            model(**batch)


def train(accelerator, model, optimizer, training, validation=(), *, epochs=1, skip=0, done=0):
    """A loop as in Accelerate's own examples."""
    for epoch in range(epochs):
        model.train()
        loader = accelerator.skip_first_batches(training, skip) if skip and not epoch else training
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    done += 1
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                accelerator.log({"loss": loss.item()}, step=100 + done)
        if validation:
            evaluate(model, validation)
            accelerator.log({"accuracy": 0.5}, step=100 + done)


def prepared(accelerator, training, validation=(), **options):
    model = llama()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    several = accelerator.prepare(model, optimizer, training, *([validation] if validation else []), **options)
    return several if validation else (*several, ())


def rows_of_tokens(rows, lengths=(16,), batch_size=2, num_workers=0, **data):
    return DataLoader(Tokens(rows, lengths, **data), batch_size=batch_size, num_workers=num_workers)
