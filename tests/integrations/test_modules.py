"""FLOPs by module of real trainings: they sum to the step, whatever wraps the model, and cost the training nothing."""

import pytest
import torch
from counted import bits, counts, fit, known, loop
from rows import each_row
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from perf_callbacks.flops.counting import module_shares
from perf_callbacks.report import cards

BATCHES = [torch.ones(4, 8)] * 5


def layers():
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(8, 8) for _ in range(3)], nn.Tanh())


@pytest.fixture
def one_rank():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("new_compiler", "one_rank")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf Tensor")  # Dynamo's
@each_row("wrap", ["", "compile", "compiled layers", "DDP", "compiled DDP"])
def test_wrappers_leave_the_paths_as_they_are(tmp_path, wrap):
    model = plain = layers()
    if "DDP" in wrap:
        model = DistributedDataParallel(model)
    if wrap == "compiled layers":
        plain[1] = torch.compile(plain[1], backend="eager")
    elif "compile" in wrap:
        model = torch.compile(model, backend="eager")
    summary = fit(tmp_path / f"fit {wrap}", model, BATCHES).summary
    torch._dynamo.reset()
    (record,) = counts(tmp_path / f"fit {wrap}")
    assert sum(line.model_flops for line in record.modules) == record.model_flops
    assert sum(line.hardware_flops for line in record.modules) == record.hardware_flops
    lines = dict.fromkeys([""] if wrap == "compile" else "012", 1)  # compiled code calls no module inside
    assert {line.path: line.modules for line in record.modules if line.hardware_flops} == lines
    (heaviest, share), *_ = summary.flops.heaviest_modules
    assert share == max(line.hardware_flops for line in record.modules) / record.hardware_flops
    assert f"most FLOPs: {heaviest}" in cards.closing(summary)


def test_a_failure_costs_the_modules_and_a_line(tmp_path, monkeypatch, caplog):
    def train(name, **config):
        model = layers()
        return loop(tmp_path / name, model, BATCHES, **config), bits(model)

    whole = train("whole")
    monkeypatch.setattr(module_shares, "running_node", lambda: 1 / 0)
    assert train("failed") == whole == train("off", flops="off")
    (record,), (expected,) = counts(tmp_path / "failed"), counts(tmp_path / "whole")
    assert record.modules == ()
    assert record.errors == {"FLOPs by module: ZeroDivisionError: division by zero": 1}
    assert known(tmp_path / "failed") == known(tmp_path / "whole")
    assert (record.by_phase, record.lower_bound) == (expected.by_phase, expected.lower_bound)
    words = "no FLOPs by module: ZeroDivisionError: division by zero. The FLOPs of the step are not affected."
    lines = [entry.getMessage() for entry in caplog.records if entry.levelname == "WARNING"]
    assert lines == [f"perf_callbacks: {words}"]
