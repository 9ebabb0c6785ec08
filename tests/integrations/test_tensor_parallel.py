"""A model that two ranks share: they go through the same samples, which count once."""

import pytest
from launching import run_ranks
from trainings.runs import records

from perf_callbacks.kernel.records.fit_records import Window

RANK = """
import sys, time, torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from perf_callbacks import PerfConfig
from perf_callbacks.loop import measure

directory, names = sys.argv[1], sys.argv[2] or None
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=names and (names,))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
model = parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
config = PerfConfig(output_dir=directory, window=2, gc="off", peak_tflops="1")
with measure(model=model, optimizer=optimizer, loader=[torch.ones(4, 8)] * 8, config=config) as perf:
    for batch in perf.loader:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    until = time.monotonic() + 30
    while not perf._watch.recorder.ranks.latest and time.monotonic() < until:
        time.sleep(0.05)
    dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("names", "per_step"), [("tp", 4), ("", None)], ids=["named", "ambiguous"])
def test_samples_of_ranks_that_share_a_model_count_once(tmp_path, names, per_step):
    assert run_ranks(RANK, tmp_path, names) == [0, 0]
    windows = records(tmp_path, Window)
    assert windows
    assert {window.samples and window.samples / window.steps for window in windows} == {per_step}
