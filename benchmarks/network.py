"""What the doors train: a network whose step takes a fraction of a millisecond, so that an added cost shows."""

import torch
from torch import nn

ROWS_EVERY = 50
"""Steps from one logged row to the next."""


class Classifier(nn.Module):
    """An embedding and a linear layer. Its forward returns the loss."""

    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(nn.Embedding(64, 32), nn.Flatten(), nn.Linear(256, 16))

    def forward(self, input_ids, labels):
        return {"loss": nn.functional.cross_entropy(self.network(input_ids), labels)}


class Rows(torch.utils.data.Dataset):
    """Samples of eight tokens, all 0, and a label from 0 to 15."""

    def __len__(self):
        return 10_000_000

    def __getitem__(self, index):
        return {"input_ids": torch.zeros(8, dtype=torch.long), "labels": torch.tensor(index % 16)}


def network():
    torch.manual_seed(0)
    return Classifier().network
