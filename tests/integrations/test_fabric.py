"""A loop with Lightning Fabric, measured as a plain loop: its stages, amounts and FLOPs, accumulation and two ranks."""

import pytest
import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, Dataset
from trainings.runs import records, steps

from perf_callbacks import PerfConfig
from perf_callbacks.kernel.records.fit_records import Summary
from perf_callbacks.kernel.records.flops_record import Flops
from perf_callbacks.loop import measure

SECONDS = {"data": 1.0, "forward": 2.0, "backward": 4.0, "clipping": 8.0, "optimizer": 16.0, "other": 32.0}
STAGES = {"data": 2.0, "forward": 4.0, "backward": 8.0, "optimizer": 24.0, "other": 32.0, "gc": 0.0}
"""The same by stage, for a step of two micro-batches."""


class Rows(Dataset):
    def __init__(self, sleep):
        self.sleep = sleep

    def __len__(self):
        return 32

    def __getitem__(self, index):
        self.sleep("data" if index % 2 == 0 else None)
        return torch.ones(4)


class Model(nn.Module):
    def __init__(self, sleep):
        super().__init__()
        self.layer, self.sleep = nn.Linear(4, 3, bias=False), sleep
        self.layer.weight.register_hook(lambda _: sleep("backward"))

    def forward(self, inputs):
        self.sleep("forward")
        return self.layer(inputs)


class Optimizer(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        self.sleep("optimizer")
        return super().step(closure)


def train(directory, sleep, *, epochs=1, **options):
    """A loop with two micro-batches of two rows in a step, as Fabric's pages have it."""
    fabric = Fabric(accelerator="cpu", devices=1, **options)
    model = Model(sleep)
    optimizer = Optimizer(model.parameters(), lr=0.01)
    optimizer.sleep = sleep
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(DataLoader(Rows(sleep), batch_size=2))
    config = PerfConfig(output_dir=str(directory), exchange="off")
    with measure(model=model, optimizer=optimizer, loader=loader, config=config) as perf:
        for _ in range(epochs):
            for number, batch in enumerate(perf.loader, 1):
                with fabric.no_backward_sync(model, enabled=number % 2 == 1):
                    fabric.backward(model(batch).sum() / 2)
                if number % 2 == 0:
                    sleep("clipping")
                    fabric.clip_gradients(model, optimizer, max_norm=1.0)
                    optimizer.step()
                    optimizer.zero_grad()
                    sleep("other")
    return perf.summary


def test_stages_of_a_fabric_loop_hold_their_time_and_sum_to_the_step(tmp_path, clock):
    train(tmp_path, lambda place: clock.sleep(SECONDS.get(place, 0.0)))
    measured = [step for step in steps(tmp_path) if not step.get("excluded")][1:-1]
    assert len(measured) >= 4
    for step in measured:
        found = {stage: step[f"{stage}_time"] for stage in STAGES}
        assert found == pytest.approx(STAGES)
        assert step["step_time"] == pytest.approx(sum(STAGES.values()))


def test_amounts_and_flops_of_a_fabric_loop_are_exact(tmp_path, caplog):
    summary = train(tmp_path, lambda _: None, epochs=2)
    assert (summary.steps, summary.samples, summary.failure) == (16, 64, None)
    # two micro-batches of two rows: the product with 4 x 3 weights, and the gradient of these; the inputs need none
    assert {record.model_flops for record in records(tmp_path, Flops)} == {2 * 2 * (2 + 2) * 4 * 3}
    assert [record.message for record in caplog.records if record.name == "perf_callbacks"] == []


def test_a_fabric_loop_in_mixed_precision_is_counted_in_its_number_format(tmp_path):
    train(tmp_path, lambda _: None, precision="bf16-mixed")
    assert {(*record.by_dtype,) for record in records(tmp_path, Flops)} == {("bfloat16",)}


def test_fabric_is_as_it_was_after_the_block(tmp_path):
    backward = torch.autograd.backward
    train(tmp_path, lambda _: None)
    (summary,) = records(tmp_path, Summary)
    assert (torch.autograd.backward, summary.failure) == (backward, None)
