"""Two real ranks: rank 0's rows and windows show what both use, and rank 1's rows don't."""

import json
import os
import sys

import pytest
from jobs.training_job import TrainingJob
from trainings.runs import records

from perf_callbacks.kernel.records.fit_records import Row


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows what a process uses")
def test_rows_and_windows_of_rank_0_show_both_ranks(tmp_path):
    plan = {"steps": 80, "step_seconds": 0.05, "limits": {"memory.observer.PERIOD_SECONDS": 0.5}}
    job = TrainingJob(tmp_path, plan=plan).to_its_end()
    windows = [window for window in job.windows if window.job]
    assert windows
    last = windows[-1]
    assert last.by_rank.keys() == {"resident_gb", "cpu_cores"}  # no GPU
    assert all(len(values) == 2 for values in last.by_rank.values())
    assert last.job["job_resident_gb"] == pytest.approx(sum(last.by_rank["resident_gb"]), rel=0.01)
    assert 0 < last.job["job_cpu_cores"] < 2 * os.cpu_count()
    row = records(tmp_path, Row)[-1].metrics
    assert row["perf/job_resident_gb"] in {window.job["job_resident_gb"] for window in windows}
    assert not [key for row in records(tmp_path, Row, rank=1) for key in row.metrics if "job" in key]
    assert len(json.dumps(last.by_rank)) < 200
