"""FLOPs by module of real trainings: they sum to the step, whatever wraps the model, and cost the training nothing."""

import pytest
import torch
from counted import bits, counts, ids, known, left_behind, loop
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from trainings import models
from trainings.doors import DOORS

from perf_callbacks.flops.counting.module_shares import ModuleShares
from perf_callbacks.kernel.records.module_records import OUTSIDE
from perf_callbacks.report import cards

LLAMA = {
    "lm_head",
    "model.layers.0.self_attn",
    *[f"model.layers.0.self_attn.{name}_proj" for name in "qkvo"],
    *[f"model.layers.0.mlp.{name}_proj" for name in ("gate", "up", "down")],
}


def multiplying(record):
    """Lines with FLOPs, by path. They sum to the step."""
    assert sum(line.model_flops for line in record.modules) == record.model_flops
    assert sum(line.hardware_flops for line in record.modules) == record.hardware_flops
    return {line.path: line for line in record.modules if line.hardware_flops}


@pytest.mark.parametrize("door", DOORS)
def test_every_integration_records_and_shows_modules(tmp_path, door):
    before = left_behind()
    done = DOORS[door](tmp_path).run()
    record = counts(tmp_path)[-1]
    assert record.errors == {}
    found = multiplying(record)
    assert OUTSIDE not in found
    if door == "transformers":
        assert {*found} - {"model.rotary_emb"} == LLAMA  # transformers 4 multiplies the angles of positions
    else:
        assert sum(line.parameters for line in record.modules) == sum(one.numel() for one in done.weights)
    (heaviest, share), *_ = done.summary.flops.heaviest_modules
    assert share == found[heaviest or ""].hardware_flops / record.hardware_flops
    assert f"most FLOPs: {heaviest}" in cards.closing(done.summary)
    assert left_behind() | {"filters": None} == before | {"filters": None}  # Lightning adds filters of warnings


def layers():
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(8, 8) for _ in range(3)], nn.Tanh())


def trained(directory, model, **config):
    """Paths with FLOPs of the counted step, the losses and the weights."""
    batches = [torch.ones(4, 8)] * 5
    losses = loop(directory, model, batches, **config)
    return losses, bits(model)


@pytest.fixture
def one_rank():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("new_compiler")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf Tensor")  # Dynamo's
@pytest.mark.parametrize("wrap", ["compile", "compiled layers", "DDP", "compiled DDP"])
def test_wrappers_leave_the_paths_as_they_are(tmp_path, request, wrap):
    model = plain = layers()
    if "DDP" in wrap:
        request.getfixturevalue("one_rank")
        model = DistributedDataParallel(model)
    if wrap == "compiled layers":
        plain[1] = torch.compile(plain[1], backend="eager")
    elif "compile" in wrap:
        model = torch.compile(model, backend="eager")
    trained(tmp_path, model)
    (record,) = counts(tmp_path)
    lines = dict.fromkeys([""] if wrap == "compile" else "012", 1)  # compiled code calls no module inside
    assert {path: line.modules for path, line in multiplying(record).items()} == lines


def test_accumulated_batches_are_summed(tmp_path):
    loop(tmp_path, layers(), [torch.ones(4, 8)] * 8, each=2)
    (record,) = counts(tmp_path)
    one = 2 * 4 * 8 * 8
    found = {path: (line.forward_flops, line.backward_flops) for path, line in multiplying(record).items()}
    assert found == {"0": (2 * one, 2 * one), "1": (2 * one, 4 * one), "2": (2 * one, 4 * one)}


def test_a_failure_costs_the_modules_and_one_line(tmp_path, monkeypatch, caplog):
    whole = trained(tmp_path / "whole", layers())
    monkeypatch.setattr(ModuleShares, "_path", lambda _: 1 / 0)
    assert trained(tmp_path / "failed", layers()) == whole == trained(tmp_path / "off", layers(), flops="off")
    (record,), (expected,) = counts(tmp_path / "failed"), counts(tmp_path / "whole")
    assert record.modules == ()
    assert record.errors == {"FLOPs by module: ZeroDivisionError: division by zero": 1}
    assert known(tmp_path / "failed") == known(tmp_path / "whole")
    assert (record.by_phase, record.lower_bound) == (expected.by_phase, expected.lower_bound)
    lines = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    told = "no FLOPs by module: ZeroDivisionError: division by zero. The FLOPs of the step are not affected."
    assert lines == [f"perf_callbacks: {told}"]


def test_an_estimate_on_a_copy_has_modules(tmp_path):
    loop(tmp_path, models.llama(), [ids(2, 8)] * 4, flops="estimate")
    (record,) = counts(tmp_path)
    assert record.source == "fake-tensor copy"
    assert {*multiplying(record)} - {"model.rotary_emb"} == LLAMA
