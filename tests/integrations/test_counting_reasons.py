"""Why FLOPs or MFU are missing is said in the summary and in the table; where they come from, too."""

import pytest
import torch
from counted import excluded, gpt2, ids, loop
from torch import nn
from trainings import models, runs

from perf_callbacks import PerfConfig
from perf_callbacks.flops import count_records
from perf_callbacks.flops.peaks.peak_rates import Peaks
from perf_callbacks.kernel.records.fit_records import Row, Summary
from perf_callbacks.report import cards
from perf_callbacks.transformers import PerfCallback


def summary_of(directory, model, batches, **config):
    loop(directory, model, batches, **({"peak_tflops": "1"} | config))
    (summary,) = runs.records(directory, Summary)
    return summary


def batches(steps=6, rows=4):
    return [torch.ones(rows, 8)] * steps


def table(summary):
    return [line.strip() for line in runs.unwrapped(cards.closing(summary)).splitlines()]


def test_of_a_fit_that_is_too_short(tmp_path):
    summary = summary_of(tmp_path, nn.Linear(8, 8), batches(1))
    assert "TFLOPS and MFU unknown: the fit ended before a step was counted" in table(summary)


def test_of_a_model_without_products(tmp_path):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8))

        def forward(self, x):
            return x * self.weight

    summary = summary_of(tmp_path, Scaled(), batches())
    (line,) = [line for line in table(summary) if line.startswith("TFLOPS and MFU unknown: ")]
    assert line.endswith("the counted steps had no matrix products in forward and backward")
    assert excluded(tmp_path) == [2, 3]
    assert summary.included_steps == 3


def test_of_a_device_without_a_peak(tmp_path):
    summary = summary_of(tmp_path, nn.Linear(8, 8), batches(), peak_tflops=None, measure_peak="off")
    assert summary.flops.mfu_unknown.startswith("no dense peak is known for ")
    assert f"MFU unknown: {summary.flops.mfu_unknown}" in table(summary)
    assert summary.flops.unknown is None


def test_of_a_number_format_without_a_peak(tmp_path, monkeypatch):
    monkeypatch.setattr(count_records, "find", lambda *_: Peaks({"bfloat16": 1e12}, "a data sheet"))
    summary = summary_of(tmp_path, nn.Linear(8, 8), batches(), peak_tflops=None)
    assert summary.flops.mfu_unknown == "no peak is known for float32 (a data sheet)"


def test_of_a_stated_peak_that_training_beats_though_no_row_is_asked_for(tmp_path):
    summary = summary_of(tmp_path, nn.Linear(8, 8), batches(), peak_tflops="0.000000000001")
    reason = "training ran faster than the stated peak of 1e-12 TFLOPS in float32"
    assert (summary.mfu, summary.hfu, summary.flops.mfu_unknown) == (None, None, reason)
    assert f"MFU unknown: {reason}" in table(summary)
    assert summary.flops.model_flops


def test_of_shapes_that_follow_no_law(tmp_path):
    class Jumping(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            for _ in range(x.shape[1] * 7 % 5 + 1):
                x = self.layer(x)
            return x

    lengths = [2, 3, 4, 5, 6, 7, 9, 12, 3, 14]
    summary = summary_of(tmp_path, Jumping(), [torch.ones(2, length, 8) for length in lengths])
    assert summary.flops.steps < summary.included_steps
    assert summary.flops.unknown.startswith(
        f"known for {summary.flops.steps} of {summary.included_steps} steps: batches"
    )
    assert f"FLOPs {summary.flops.unknown}" in table(summary)


def test_where_nobody_asked_nothing_is_said(tmp_path):
    summary = summary_of(tmp_path, nn.Linear(8, 8), batches(), flops="off")
    assert summary.flops is None
    assert not [line for line in table(summary) if "unknown" in line and "tokens/s" not in line]


@pytest.mark.parametrize(
    ("lengths", "flops", "source"),
    [
        ([8] * 6, "count", "counted"),
        ([8, 8, 9, 10, 11], "count", "counted, scaled"),
        ([8] * 6, "estimate", "fake-tensor copy"),
    ],
)
def test_where_flops_come_from(tmp_path, lengths, flops, source):
    summary = summary_of(tmp_path, gpt2(), [ids(2, length) for length in lengths], flops=flops)
    assert summary.flops.source == source
    (line,) = [line for line in table(summary) if "FLOPS of the model" in line]
    assert f", {source}" in line


def test_rows_have_the_share_of_counted_steps_and_the_lower_bound(tmp_path):
    class Spectral(nn.Linear):
        def forward(self, x):
            return super().forward(torch.linalg.matrix_exp(x[:, :8] * 0) @ x)

    arguments = models.training_arguments(tmp_path, max_steps=4)
    models.trainer(arguments, PerfCallback(), train_dataset=models.Tokens(16)).train()
    rows = [row.metrics for row in runs.records(tmp_path, Row)][:-1]  # the last one is of the run
    assert all(
        row["perf/flops_known"] == 1 and "perf/flops_lower_bound" not in row for row in rows if "perf/mfu" in row
    )
    model, config = Spectral(8, 8), PerfConfig(output_dir=str(tmp_path / "other"), peak_tflops="1")
    from perf_callbacks.loop import measure

    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with measure(model=model, optimizer=optimizer, loader=batches(rows=8), config=config) as perf:
        for batch in perf.loader:
            model(batch).sum().backward()
            optimizer.step()
        row = perf.row()
    assert ("perf/flops_known" in row, row["perf/flops_lower_bound"]) == (False, 1)


def test_an_evaluation_in_each_step_is_why_there_are_no_metrics(tmp_path, caplog):
    arguments = models.training_arguments(tmp_path, eval_strategy="steps", eval_steps=1, max_steps=5)
    ours = PerfCallback()
    models.trainer(arguments, ours, eval_dataset=models.Tokens(4)).train()
    said = [record.getMessage() for record in caplog.records if "no metrics" in record.getMessage()]
    assert said == ["perf_callbacks: no metrics at step 5: all steps since the last row are excluded (1 evaluation)."]
    (line,) = [line for line in table(ours.summary) if "unknown" in line]
    assert line.startswith("TFLOPS and MFU unknown: all steps are excluded: 3 evaluation, 1 first")


def test_rows_that_are_empty_at_the_start_need_no_word(tmp_path, caplog):
    models.trainer(models.training_arguments(tmp_path, max_steps=4), PerfCallback()).train()
    assert not [record for record in caplog.records if "no metrics" in record.getMessage()]
