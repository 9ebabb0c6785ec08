"""Two real ranks: rank 0's rows and windows show what both use, and rank 1's rows don't."""

import json
import os
import sys

import pytest
from launching import run_ranks
from trainings.runs import records

from perf_callbacks.kernel.records.fit_records import Row, Window

TRAIN = """
import os, sys, time
import torch
from torch.nn.parallel import DistributedDataParallel
from perf_callbacks import PerfConfig
from perf_callbacks.loop import measure
from perf_callbacks.memory import observer
torch.distributed.init_process_group("gloo")
observer.PERIOD_SECONDS = 0.5
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
config = PerfConfig(output_dir=sys.argv[1], window=5)
with measure(model=model, optimizer=optimizer, loader=[torch.ones(2, 4)] * 80, config=config) as perf:
    for step, batch in enumerate(perf.loader, 1):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.1)
        if step % 10 == 0:
            perf.row()
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows what a process uses")
def test_rows_and_windows_of_rank_0_show_both_ranks(tmp_path):
    assert run_ranks(TRAIN, tmp_path) == [0, 0]
    windows = [window for window in records(tmp_path, Window) if window.job]
    assert windows
    last = windows[-1]
    assert last.by_rank.keys() == {"resident_gb", "cpu_cores"}  # no GPU
    assert all(len(values) == 2 for values in last.by_rank.values())
    assert last.job["job_resident_gb"] == pytest.approx(sum(last.by_rank["resident_gb"]), rel=0.01)
    assert 0 < last.job["job_cpu_cores"] < 2 * os.cpu_count()
    row = records(tmp_path, Row)[-1].metrics
    assert row["perf/job_resident_gb"] in {window.job["job_resident_gb"] for window in windows}
    assert not [key for one in records(tmp_path, Row, rank=1) for key in one.metrics if "job" in key]
    assert len(json.dumps(last.by_rank)) < 200
