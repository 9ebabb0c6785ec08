"""One script, through every door: the same records."""

import functools
from collections import Counter

import pytest
import torch
from counted import ANGLES
from metric_keys import ON_CPU, keys, of_run
from torch.utils.data import DataLoader
from trainings import lightning_kit
from trainings.accelerated import an_accelerator
from trainings.models import Tokens, llama, trainer, training_arguments
from trainings.runs import records, steps

from perf_callbacks import PerfConfig, Summary
from perf_callbacks.accelerate import attach
from perf_callbacks.kernel.records.fit_records import Row, Run, Span
from perf_callbacks.kernel.records.flops_record import Flops
from perf_callbacks.loop import measure
from perf_callbacks.transformers import PerfCallback

# 22 rows in batches of 4, two to a step: three steps in an epoch, the last of them of 4 and 2 rows.
ROWS, BATCH, ACCUMULATION, STEPS, EVALUATE, SAVE = 22, 4, 2, 8, 4, 6


def through_trainer(directory, *, interrupted):
    often = {"eval_strategy": "steps", "eval_steps": EVALUATE, "save_strategy": "steps", "save_steps": SAVE}
    arguments = training_arguments(
        directory,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUMULATION,
        max_steps=STEPS,
        **often if interrupted else {},
    )
    callback = PerfCallback()
    data = {"train_dataset": Tokens(ROWS, (16, 5)), "eval_dataset": Tokens(4)}
    trainer(arguments, callback, **data).train()
    return callback.summary


def through_loop(directory, *, interrupted):
    model, loader = llama(), DataLoader(Tokens(ROWS, (16, 5)), batch_size=BATCH, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters())
    done = 0
    config = PerfConfig(output_dir=str(directory))
    with measure(model=model, optimizer=optimizer, loader=loader, config=config) as perf:
        while done < STEPS:
            for number, batch in enumerate(perf.loader, 1):
                model(**batch).loss.backward()
                if number % ACCUMULATION and number < len(perf.loader):
                    continue
                optimizer.step()
                optimizer.zero_grad()
                done += 1
                perf.row()
                if interrupted and done % EVALUATE == 0:
                    evaluate(model)
                if interrupted and done % SAVE == 0:
                    with perf.checkpoint():
                        torch.save(model.state_dict(), directory / "model.pt")
                if done == STEPS:
                    break
    return perf.summary


def through_lightning(directory, of="lightning", *, interrupted):
    kinds = lightning_kit.tree(of)

    class Module(kinds.pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = llama()

        def training_step(self, batch, batch_idx):
            return self.model(**batch).loss

        def validation_step(self, batch, batch_idx):
            self.model(**batch)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    callback = kinds.PerfCallback()
    often = {"check_val_every_n_epoch": None, "val_check_interval": EVALUATE * ACCUMULATION}
    save = kinds.callbacks.ModelCheckpoint(dirpath=directory, every_n_train_steps=SAVE, save_top_k=-1)
    trainer = lightning_kit.trainer(
        directory,
        callback,
        *[save] if interrupted else [],
        of=of,
        accumulate_grad_batches=ACCUMULATION,
        max_steps=STEPS,
        enable_checkpointing=interrupted,
        **often if interrupted else {},
    )
    trainer.fit(
        Module(),
        DataLoader(Tokens(ROWS, (16, 5)), batch_size=BATCH, shuffle=True),
        DataLoader(Tokens(4), batch_size=BATCH) if interrupted else None,
    )
    return callback.summary


def through_accelerator(directory, *, interrupted):
    accelerator = an_accelerator(directory, gradient_accumulation_steps=ACCUMULATION)
    perf = attach(accelerator)
    model, data = llama(), DataLoader(Tokens(ROWS, (16, 5)), batch_size=BATCH, shuffle=True)
    model, optimizer, loader, validation = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters()), data, DataLoader(Tokens(4), batch_size=BATCH)
    )
    done = 0
    while done < STEPS:
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()
            if not accelerator.sync_gradients:
                continue
            done += 1
            accelerator.log({"loss": 1.0}, step=done)
            if interrupted and done % EVALUATE == 0:
                evaluate(model, validation)
            if interrupted and done % SAVE == 0:
                accelerator.save_state(str(directory / "checkpoint"))
            if done == STEPS:
                break
    accelerator.end_training()
    return perf.summary


def evaluate(model, loader=None):
    model.eval()
    with torch.no_grad():
        for batch in loader or DataLoader(Tokens(4), batch_size=BATCH):
            model(**batch)
    model.train()


DOORS = {
    "transformers": through_trainer,
    "loop": through_loop,
    "accelerate": through_accelerator,
    "lightning": through_lightning,
    "pytorch_lightning": functools.partial(through_lightning, of="pytorch_lightning"),
}


SAMPLES = [8, 8, 6, 8, 8, 6, 8, 8]
"""Of each step."""


def assert_rows(rows, found, included, *, averaged):
    """Rows of the included steps, and at the end the averages over the run where a trainer logs them."""
    whole = [STEPS] if averaged else []
    assert [row.step for row in rows] == included + whole
    assert {key for row in rows[len(included) :] for key in row.metrics} == {*of_run(KEYS if whole else ())}
    assert all(row.metrics.keys() == KEYS for row in rows[: len(included)])
    for number, row in zip(included, rows, strict=False):
        count, seconds = SAMPLES[number - 1], found[number - 1]["step_time"] * 1e12
        assert row.metrics["perf/tflops"] == pytest.approx(by_hand(count, ACCUMULATION) / seconds, rel=1e-4)
        assert row.metrics["perf/hardware_tflops"] == pytest.approx(
            all_by_hand(count, ACCUMULATION) / seconds, rel=1e-4
        )
        assert row.metrics["perf/flops_coverage"] == 1.0
        peak = row.metrics["perf/peak_tflops"]
        for ratio, tflops in {"mfu": "tflops", "mfu_mixed": "tflops", "hfu": "hardware_tflops"}.items():
            assert row.metrics[f"perf/{ratio}"] == pytest.approx(row.metrics[f"perf/{tflops}"] / peak, rel=1e-4)


def assert_summary(summary, included):
    assert (summary.step, summary.steps, summary.included_steps) == (STEPS, STEPS, len(included))
    assert (summary.samples, summary.tokens) == (sum(SAMPLES), 16 * sum(SAMPLES))
    assert summary.included_samples == sum(SAMPLES[number - 1] for number in included)
    assert summary.stage_seconds.keys() == {f"{stage}_time" for stage in STAGES}
    assert sum(summary.stage_seconds.values()) == pytest.approx(summary.included_seconds)
    batches = ACCUMULATION * len(included)
    assert summary.flops.model_flops == by_hand(summary.included_samples, batches)
    assert summary.flops.hardware_flops == all_by_hand(summary.included_samples, batches)
    assert summary.flops.seconds == pytest.approx(summary.included_seconds)
    assert (summary.flops.coverage, summary.flops.lower_bound) == (1.0, False)
    assert summary.failure is None


@pytest.mark.parametrize(
    ("interrupted", "excluded", "spans"),
    [
        (False, {1: "first", 2: "counted", 3: "recounted"}, []),
        (
            True,
            {1: "first", 2: "counted", 3: "recounted", 5: "evaluation", 7: "checkpoint"},
            [("evaluation", 4), ("checkpoint", 6), ("evaluation", 8)],
        ),
    ],
    ids=["undisturbed", "interrupted"],
)
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.usefixtures("accelerate_state")
def test_the_same_script_leaves_the_same_records(tmp_path, monkeypatch, door, *, interrupted, excluded, spans):
    monkeypatch.setenv("PERF_CALLBACKS_REPORT", "1")
    summary = DOORS[door](tmp_path, interrupted=interrupted)

    assert [path.parent.name for path in tmp_path.rglob("report.html")] == ["perf_callbacks"]
    (run,) = records(tmp_path, Run)
    assert (run.door, run.attempt, run.step, run.device, run.timeline) == (NAMES.get(door, door), 1, 0, "cpu", "host")

    found = steps(tmp_path)
    assert [(step["step"], step["samples"], step["tokens"]) for step in found] == [
        (number, count, 16 * count) for number, count in enumerate(SAMPLES, 1)
    ]
    assert {step["step"]: step["excluded"] for step in found if step["excluded"]} == excluded
    assert set().union(*found) == COLUMNS
    assert [step["model_flops"] for step in found] == [
        None,
        *(by_hand(count, ACCUMULATION) for count in SAMPLES[1:]),
    ]
    found_spans = [(span.kind, span.step) for span in records(tmp_path, Span)]
    assert found_spans[: len(spans)] == spans
    assert set(found_spans[len(spans) :]) <= {("checkpoint", STEPS)}  # a trainer saves once more at the end

    included = [number for number in range(1, STEPS + 1) if number not in excluded]
    assert_rows(records(tmp_path, Row), found, included, averaged=door != "loop")
    assert records(tmp_path, Summary) == [summary]
    assert_summary(summary, included)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.usefixtures("accelerate_state")
def test_what_is_counted_is_the_same_through_every_door(tmp_path, door):
    """The second step; and of the third, the batch with fewer rows than those before."""
    DOORS[door](tmp_path, interrupted=False)
    counted = records(tmp_path, Flops)
    assert [(one.step, one.whole_step, one.model_flops) for one in counted] == [
        (2, True, by_hand(2 * BATCH, ACCUMULATION)),
        (3, False, by_hand(2, 1)),
    ]
    for one, rows, batches in zip(counted, (2 * BATCH, 2), (ACCUMULATION, 1), strict=True):
        assert one.by_phase == Counter({phase: rows * flops for phase, flops in FLOPS_BY_PHASE.items()}) + Counter(
            forward=batches * ROTARY
        )
        assert one.hardware_flops == all_by_hand(rows, batches)
        assert one.by_dtype == {"float32": one.model_flops}
        assert one.over_six_n == pytest.approx(by_hand(rows, batches) / (6 * WEIGHTS * LENGTH * rows))
        assert (one.coverage, one.lower_bound, one.uncounted, one.errors) == (1.0, False, {}, {})
        assert (one.source, one.logical_flops, one.copies, one.reads) == ("counted", None, (), {})
        assert sum(flops for *_, flops in one.products) <= one.hardware_flops
        assert {"aten::mm", SCORES} <= {operation for operation, *_ in one.products}


NAMES = {"pytorch_lightning": "lightning"}
"""Doors that go by the name of another one."""
STAGES = ("data", "forward", "backward", "optimizer", "gc", "other")
KEYS = keys(*ON_CPU)
COLUMNS = {"step", "samples", "tokens", "excluded", "model_flops", "step_time", *(f"{stage}_time" for stage in STAGES)}

LENGTH, HIDDEN = 16, 16
WEIGHTS = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * 32 + HIDDEN * 64
"""Of the Llama, those that are multiplied: around attention, in the block after it, in the head."""
ATTENTION = 4 * LENGTH * LENGTH * HIDDEN
"""FLOPs of a row: each token's scores for each token, and what they make of the values."""
FLOPS_BY_PHASE = {
    "forward": 2 * WEIGHTS * LENGTH + ATTENTION,
    "backward": 4 * WEIGHTS * LENGTH + 2 * ATTENTION,
    "attention_recompute": ATTENTION // 2,
}
"""By hand, of a row. The scores are made again in the backward."""
FLOPS_OF_A_ROW = FLOPS_BY_PHASE["forward"] + FLOPS_BY_PHASE["backward"]
HARDWARE_FLOPS_OF_A_ROW = sum(FLOPS_BY_PHASE.values())
SCORES = "aten::_scaled_dot_product_flash_attention_for_cpu"


ROTARY = 2 * LENGTH * (HIDDEN // 2) // 2 if ANGLES else 0
"""FLOPs of a batch for the angles of positions: one for two numbers of a head, of which there are two."""


def by_hand(rows, batches):
    """What the model does."""
    return rows * FLOPS_OF_A_ROW + batches * ROTARY


def all_by_hand(rows, batches):
    """What is executed."""
    return rows * HARDWARE_FLOPS_OF_A_ROW + batches * ROTARY
