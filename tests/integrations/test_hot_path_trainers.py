"""Python frames of ours in an ordinary step of the trainers: frames are what measuring costs, clocks are not."""

import statistics
import sys
from collections import Counter
from pathlib import Path

import pytest
from trainings import lightning_kit, models
from transformers import Trainer, TrainerCallback

import perf_callbacks
from perf_callbacks.transformers import PerfCallback

OURS = str(Path(perf_callbacks.__file__).parent)
SETTLED = range(86, 126)
"""Steps after the FLOPs are counted and batches are known, and before a block of steps goes to the journal."""

TOLD = hasattr(Trainer, "_run_epoch")
"""Transformers 4 tells nobody of an exception: more of its methods are watched."""


class Frames:
    """Counts our frames in each step."""

    def __init__(self):
        self.steps, self._calls = [], Counter()

    def __enter__(self):
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)

    def _profile(self, frame, event, _arg):
        if event == "call" and (path := frame.f_code.co_filename).startswith(OURS):
            self._calls[Path(path).name, frame.f_code.co_firstlineno] += 1

    def end_step(self):
        calls, self._calls = self._calls, Counter()  # first: a collection while they are sorted calls us, too
        self.steps.append(tuple(sorted(calls.items())))

    @property
    def ordinary(self):
        """The calls of the step that is the rule: a garbage collection may fall into another one."""
        return dict(statistics.mode(self.steps[step] for step in SETTLED))


def test_frames_of_a_step_in_the_hugging_face_trainer(tmp_path):
    frames = Frames()

    class Ends(TrainerCallback):
        def on_step_end(self, *_args, **_kwargs):
            frames.end_step()

    arguments = models.training_arguments(tmp_path, max_steps=130, logging_steps=1000)
    trainer = models.trainer(arguments, PerfCallback(), Ends(), train_dataset=models.Tokens(520))
    with frames:
        trainer.train()
    assert sum(frames.ordinary.values()) <= (9 if TOLD else 16), frames.ordinary


@pytest.mark.skipif(not TOLD, reason="no test of Lightning depends on transformers: make test runs it")
@pytest.mark.parametrize("scheduled", [False, True], ids=["", "with a scheduler"])
def test_frames_of_a_step_in_the_lightning_trainer(tmp_path, scheduled):
    kinds, frames = lightning_kit.tree(), Frames()

    class Ends(kinds.Callback):
        def on_train_batch_end(self, *_args, **_kwargs):
            frames.end_step()

    class Module(kinds.Automatic):
        def configure_optimizers(self):
            configured = super().configure_optimizers()
            return configured if scheduled else configured["optimizer"]

    trainer = lightning_kit.trainer(tmp_path, kinds.PerfCallback(), Ends(), max_steps=130, log_every_n_steps=1000)
    with frames:
        trainer.fit(Module(), lightning_kit.loader(520))
    assert sum(frames.ordinary.values()) <= (12 if scheduled else 10), frames.ordinary
