"""Few Python frames of an ordinary step are ours: frames are what measuring costs, and clocks are not."""

import statistics
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader
from trainings import lightning_kit, models
from trainings.accelerated import an_accelerator, prepared, rows_of_tokens
from transformers import Trainer, TrainerCallback

import perf_callbacks
from perf_callbacks import PerfConfig
from perf_callbacks.accelerate import attach
from perf_callbacks.flops import fingerprint
from perf_callbacks.loop import measure
from perf_callbacks.transformers import PerfCallback

OURS = str(Path(perf_callbacks.__file__).parent)
STEPS, SETTLED = 130, slice(86, 126)
"""All steps, and those after FLOPs are counted and batches are known, before a block of steps goes to the journal."""
TOLD = hasattr(Trainer, "_run_epoch")
"""Transformers 4 tells nobody of an exception: more of its methods are watched."""


class Frames:
    """The frames of ours, step by step."""

    def __init__(self):
        self.steps = [[]]

    def __enter__(self):
        sys.setprofile(self.see)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)

    def see(self, frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(OURS):
            self.steps[-1].append(f"{code.co_filename.removeprefix(OURS)}:{code.co_firstlineno} {code.co_name}")

    def end_step(self, *_args, **_kwargs):
        self.steps.append([])

    def assert_at_most(self, count):
        """In the most frequent kind of step: in the others, steps are written or garbage is collected."""
        settled = self.steps[SETTLED]
        usual = statistics.mode(map(len, settled))
        assert usual <= count, "\n".join(next(frames for frames in settled if len(frames) == usual))


@pytest.mark.parametrize(("flops", "compiled"), [("count", False), ("count", True), ("off", False)])
def test_an_ordinary_step_of_a_plain_loop_has_six_frames(tmp_path, monkeypatch, flops, compiled):
    monkeypatch.setattr(fingerprint, "compiles", lambda: compiled)  # something else in the process
    model, frames = models.llama(), Frames()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(models.Tokens(STEPS, mask=False), batch_size=1)
    config = PerfConfig(output_dir=str(tmp_path), flops=flops)
    with measure(model=model, optimizer=optimizer, loader=loader, config=config) as perf, frames:
        for batch in perf.loader:
            model(**batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            frames.end_step()
    frames.assert_at_most(6)


@pytest.mark.parametrize("flops", ["count", "off"])
@pytest.mark.usefixtures("accelerate_state")
def test_an_ordinary_step_with_accelerate_has_ten_frames(tmp_path, flops):
    accelerator, frames = an_accelerator(tmp_path), Frames()
    with attach(accelerator, PerfConfig(flops=flops)):
        model, optimizer, loader, _ = prepared(accelerator, rows_of_tokens(STEPS, batch_size=1, mask=False))
        with frames:
            for batch in loader:
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()
                frames.end_step()
    frames.assert_at_most(10)


def test_frames_of_a_step_in_the_hugging_face_trainer(tmp_path):
    frames, ends = Frames(), TrainerCallback()
    ends.on_step_end = frames.end_step
    arguments = models.training_arguments(tmp_path, max_steps=STEPS, logging_steps=1000)
    trainer = models.trainer(arguments, PerfCallback(), ends, train_dataset=models.Tokens(4 * STEPS))
    with frames:
        trainer.train()
    frames.assert_at_most(9 if TOLD else 16)


@pytest.mark.skipif(not TOLD, reason="no test of Lightning depends on transformers: make test runs it")
@pytest.mark.parametrize("scheduled", [False, True], ids=["", "with a scheduler"])
def test_frames_of_a_step_in_the_lightning_trainer(tmp_path, scheduled):
    kinds, frames = lightning_kit.tree(), Frames()

    class Module(kinds.Automatic):
        def configure_optimizers(self):
            configured = super().configure_optimizers()
            return configured if scheduled else configured["optimizer"]

    ends = type("Ends", (kinds.Callback,), {"on_train_batch_end": frames.end_step})()
    trainer = lightning_kit.trainer(tmp_path, kinds.PerfCallback(), ends, max_steps=STEPS, log_every_n_steps=1000)
    with frames:
        trainer.fit(Module(), lightning_kit.loader(4 * STEPS))
    frames.assert_at_most(12 if scheduled else 10)
