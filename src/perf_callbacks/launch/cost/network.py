"""Model and data of the short trainings that measure the callback's cost.

A training step takes less than a millisecond, so the cost of the callback is a measurable part of the step.
"""

from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

BATCH_SIZE = 4


class Classifier(nn.Module):
    """Model with an embedding and a linear layer. Its forward returns the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Embedding(64, 32), nn.Flatten(), nn.Linear(256, 16))

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": nn.functional.cross_entropy(self.network(input_ids), labels)}


class Rows(Dataset[dict[str, torch.Tensor]]):
    """Dataset whose samples have eight tokens, all 0, and a label from 0 to 15."""

    def __len__(self) -> int:
        return 10_000_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.zeros(8, dtype=torch.long), "labels": torch.tensor(index % 16)}


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3)


def loss_of(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    loss: torch.Tensor = model(**batch)["loss"]
    return loss
