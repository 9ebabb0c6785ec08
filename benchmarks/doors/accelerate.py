"""A loop of one's own with Accelerate."""

import contextlib

import torch
from accelerate import Accelerator
from network import Classifier, Rows
from torch.utils.data import DataLoader
from turns import NONE, TURN, Turns

from perf_callbacks.accelerate import attach


def run(cycles: int, directory: str) -> Turns:
    accelerator = Accelerator(cpu=True, project_dir=directory)
    model = Classifier()
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=1e-3), DataLoader(Rows(), batch_size=4)
    )
    attached = contextlib.ExitStack()
    turns = Turns(
        {
            "nothing": NONE,
            "nothing again": NONE,
            "ours": (lambda: attached.enter_context(attach(accelerator)), attached.close),
        },
        cycles,
    )
    model.train()
    done = 0
    while done < turns.steps:  # a loader is measured from its next iteration on
        for batch in loader:
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            turns.step()
            if not done % TURN:
                break
    return turns
