"""Python frames of ours in an ordinary step of the trainers: frames are what costs, clocks are not."""

import statistics
import sys
from collections import Counter
from pathlib import Path

import perf_callbacks

OURS = str(Path(perf_callbacks.__file__).parent)
SETTLED = range(8, 32)
"""Steps after the FLOPs are counted, and before the first block of them goes to the journal."""


class Frames:
    """Counts calls of our functions, by name, in each step."""

    def __init__(self):
        self.steps, self._calls = [], Counter()

    def __enter__(self):
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)

    def _profile(self, frame, event, _arg):
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            self._calls[frame.f_code.co_filename[len(OURS) + 1 :], frame.f_code.co_qualname] += 1

    def end_step(self):
        self.steps.append(self._calls)
        self._calls = Counter()

    @property
    def ordinary(self):
        """The calls of the step that is the rule: a garbage collection may fall into another one."""
        steps = [tuple(sorted(self.steps[step].items())) for step in SETTLED]
        return dict(statistics.mode(steps))


def test_a_step_of_the_hugging_face_trainer_takes_eleven_frames(tmp_path):
    import tiny
    from transformers import TrainerCallback

    from perf_callbacks.transformers import PerfCallback

    frames = Frames()

    class Ends(TrainerCallback):
        def on_step_end(self, *_args, **_kwargs):
            frames.end_step()

    arguments = tiny.training_arguments(tmp_path, max_steps=40, logging_steps=1000)
    trainer = tiny.trainer(arguments, PerfCallback(), Ends(), train_dataset=tiny.Tokens(160, mask=False))
    with frames:
        trainer.train()
    assert sum(frames.ordinary.values()) <= 11, frames.ordinary


def test_a_step_of_the_lightning_trainer_takes_fifteen_frames(tmp_path):
    import sparks

    kinds, frames = sparks.tree(), Frames()

    class Ends(kinds.Callback):
        def on_train_batch_end(self, *_args, **_kwargs):
            frames.end_step()

    trainer = sparks.trainer(tmp_path, kinds.PerfCallback(), Ends(), max_steps=40, log_every_n_steps=1000)
    with frames:
        trainer.fit(kinds.Automatic(), sparks.loader(160))
    assert sum(frames.ordinary.values()) <= 15, frames.ordinary
