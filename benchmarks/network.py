"""What the doors train: a network whose step takes a fraction of a millisecond, so that what is added to it is seen."""

import torch
from torch import nn
from torch.utils.data import Dataset

ROWS_EVERY = 50
"""Steps from one logged row to the next."""


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(64, 32), nn.Flatten(), nn.Linear(256, 16))


class Rows(Dataset):
    def __len__(self):
        return 10_000_000

    def __getitem__(self, index):
        return {"input_ids": torch.zeros(8, dtype=torch.long), "labels": torch.tensor(index % 16)}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = network()

    def forward(self, input_ids, labels):
        return {"loss": nn.functional.cross_entropy(self.network(input_ids), labels)}
