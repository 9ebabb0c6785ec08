"""Two ranks of a Lightning trainer: each measures itself, rank 0 logs."""

import pytest
from launching import python
from trainings import lightning_kit
from trainings.runs import records, steps

from perf_callbacks.kernel.records.fit_records import Row, Run, Summary

pytestmark = [pytest.mark.slow]

TRAIN = """
import importlib, os, sys
import torch
from torch.utils.data import DataLoader

root, framework, strategy = sys.argv[1:]
name = {"lightning": "lightning.pytorch"}.get(framework, framework)
pl, loggers = importlib.import_module(name), importlib.import_module(name + ".loggers")
PerfCallback = importlib.import_module("perf_callbacks." + framework).PerfCallback


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 4)

    def training_step(self, batch, batch_idx):
        loss = self.net(batch).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


if __name__ == "__main__":
    ours = PerfCallback()
    trainer = pl.Trainer(
        default_root_dir=root, max_steps=6, accelerator="cpu", devices=2, strategy=strategy, log_every_n_steps=1,
        logger=loggers.CSVLogger(root), enable_progress_bar=False, enable_model_summary=False, callbacks=[ours],
        enable_checkpointing=False,
        accumulate_grad_batches=2,
    )
    trainer.fit(Module(), DataLoader(torch.randn(64, 4), batch_size=4))
    sys.stdout.write(f"summary here: {ours.summary is not None}\\n")  # whole, beside the other rank's
    sys.stdout.flush()
    os._exit(0)  # gloo's threads at times abort the interpreter's own way out
"""


LAUNCHERS = {
    "spawned": ((), "ddp_spawn"),
    "by Lightning": ((), "ddp"),
    "by torchrun": (("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2), "ddp"),
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_each_rank_has_its_journal_and_the_logger_has_rows_of_rank_0(tmp_path, launcher):
    how, strategy = LAUNCHERS[launcher]
    framework = "pytorch_lightning" if launcher == "by torchrun" else "lightning"
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    status, output = python(*how, script, tmp_path, framework, strategy)
    assert status == 0, output
    folder = tmp_path / "lightning_logs" / "version_0" / "perf_callbacks"
    assert sorted(tmp_path.rglob("*.jsonl")) == [folder / "rank0.jsonl", folder / "rank1.jsonl"]
    for rank in range(2):
        (run,) = records(tmp_path, Run, rank=rank)
        assert (run.rank, run.world_size, run.door) == (rank, 2, "lightning")
        assert [step["samples"] for step in steps(tmp_path, rank=rank)] == [8] * 6
        assert {"data_time", "forward_time", "backward_time", "optimizer_time"} <= steps(tmp_path, rank=rank)[0].keys()
        (summary,) = records(tmp_path, Summary, rank=rank)
        assert (summary.steps, summary.failure) == (6, None)
    assert output.count("step time, stages and throughput on cpu") == 1, output
    assert output.count("6 steps, 4 measured") == 1, output
    assert ("summary here: True" in output) == (strategy != "ddp_spawn")

    lines = lightning_kit.logged(tmp_path)
    assert [line["step"] for line in lines if "loss" in line] == [0, 1, 2, 3, 4, 5]
    logged = [line for line in lines if "perf/step_time" in line]
    assert [line["step"] for line in logged] == [2, 3, 4, 5]  # after the first, and the one whose FLOPs are counted
    mine = [row.metrics["perf/step_time"] for row in records(tmp_path, Row) if "perf/step_time" in row.metrics]
    assert [line["perf/step_time"] for line in logged] == pytest.approx(mine, rel=1e-4)
    rates = {key for line in lines for key in line if "_per_second" in key}
    assert rates == {"perf/samples_per_second_per_device", "perf/run/samples_per_second_per_device"}
