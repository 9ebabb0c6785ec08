"""Where time that is spent in known places of real training code turns up.

Most of it on a clock that only moves there, so that all of it can be told to the microsecond.
"""

import functools
import gc
import time

import pytest
import tiny
import torch
from transformers import Trainer, TrainerCallback

from perf_callbacks import PerfConfig
from perf_callbacks.kernel.records.fit_records import Span
from perf_callbacks.transformers import PerfCallback

STAGES = ("data", "forward", "backward", "optimizer", "gc", "other")
SLEEP = 0.012
SLOW = (4, 6)


class Sleeper:
    """Sleeps once in each of some steps, and says for how long."""

    def __init__(self, clock=time.perf_counter, sleep=time.sleep, steps=SLOW):
        self.clock, self.sleep, self.steps = clock, sleep, steps
        self.slept = {}
        self.trainer = None

    def __call__(self, *_args, **_kwargs):
        step = self.trainer.state.global_step + 1
        if step in self.steps and step not in self.slept:
            start = self.clock()
            self.sleep(SLEEP)
            self.slept[step] = self.clock() - start


def sleeping_before(sleep, method):
    @functools.wraps(method)
    def call(*args, **kwargs):
        sleep()
        return method(*args, **kwargs)

    return call


def override(owner, name):
    """A slower method, put on one object before training."""

    def install(trainer, sleep):
        setattr(owner(trainer), name, sleeping_before(sleep, getattr(owner(trainer), name)))

    return install


def subclass(name):
    """A trainer whose own method is slower."""

    def install(trainer, sleep):
        kind = type(trainer)
        trainer.__class__ = type("Slow", (kind,), {name: sleeping_before(sleep, getattr(kind, name))})

    return install


def hook(name):
    """Another callback that is slow."""

    def install(trainer, sleep):
        trainer.add_callback(type("Slow", (TrainerCallback,), {name: sleep})())

    return install


def item(trainer, sleep):
    trainer.train_dataset.__class__ = type(
        "Slow", (tiny.Tokens,), {"__getitem__": sleeping_before(sleep, tiny.Tokens.__getitem__)}
    )


def pre_hook(trainer, sleep):
    trainer.model.model.layers[0].register_forward_pre_hook(sleep)


def gradient(trainer, sleep):
    trainer.model.lm_head.weight.register_hook(sleep)


def loss(trainer, sleep):
    def compute(outputs, labels, num_items_in_batch=None):
        sleep()
        return outputs["logits"].float().mean() ** 2

    trainer.compute_loss_func = compute


def optimizer(trainer, sleep):
    class Slow(torch.optim.SGD):
        def step(self, closure=None):
            sleep()
            return super().step(closure)

    trainer.optimizer = Slow(trainer.model.parameters(), lr=0.01)


def scheduler(trainer, sleep):
    trainer.create_optimizer()

    def rate(step):
        if step:  # the first call is in the constructor
            sleep()
        return 1.0

    trainer.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(trainer.optimizer, rate)


PLACES = {
    "the dataset": ("data", item),
    "the collator": ("data", override(lambda trainer: trainer, "data_collator")),
    "get_batch_samples of a subclass": ("data", subclass("get_batch_samples")),
    "a layer": ("forward", pre_hook),
    "the model": ("forward", override(lambda trainer: trainer.model, "forward")),
    "compute_loss of a subclass": ("forward", subclass("compute_loss")),
    "compute_loss_func": ("forward", loss),
    "a gradient": ("backward", gradient),
    "accelerator.backward": ("backward", override(lambda trainer: trainer.accelerator, "backward")),
    "clipping": ("optimizer", override(lambda trainer: trainer.accelerator, "clip_grad_norm_")),
    "the optimizer": ("optimizer", optimizer),
    "the scheduler": ("optimizer", scheduler),
    "zero_grad": ("optimizer", override(lambda trainer: trainer.model, "zero_grad")),
    "training_step of a subclass": ("other", subclass("training_step")),
    "floating_point_ops of a subclass": ("other", subclass("floating_point_ops")),
    **{
        f"{name} of another callback": ("other", hook(name))
        for name in (
            "on_step_begin",
            "on_substep_end",
            "on_pre_optimizer_step",
            "on_optimizer_step",
            "on_step_end",
            "on_log",
        )
    },
}


def collection(trainer, sleep):
    def linger(phase, _info):
        if phase == "start":
            sleep()

    def collect(*_):
        gc.callbacks.append(linger)
        gc.collect(0)
        gc.callbacks.remove(linger)

    trainer.model.register_forward_pre_hook(collect)


def asking(ask):
    """Another callback that wants an evaluation at once."""

    def install(trainer, sleep):
        def on_step_end(_self, _args, state, _control, **_):
            if state.global_step + 1 in SLOW:
                ask(trainer)

        trainer.add_callback(type("Curious", (TrainerCallback,), {"on_step_end": on_step_end})())
        trainer.model.register_forward_pre_hook(lambda module, _: None if module.training else sleep())

    return install


def fit(directory, install, sleep, **arguments):
    """The steps of a fit in which there is a sleep where `install` puts it."""
    arguments = {"max_steps": 7, "gradient_accumulation_steps": 2} | arguments
    sleep.trainer = trainer = tiny.trainer(
        tiny.training_arguments(directory, **arguments),
        train_dataset=tiny.Tokens(88),
        eval_dataset=tiny.Tokens(4),
        kind=type("Own", (Trainer,), {}),
    )
    install(trainer, sleep)
    trainer.add_callback(PerfCallback(PerfConfig(flops="off")))
    trainer.train()
    return {step["step"]: step for step in tiny.steps(directory)}


@pytest.fixture
def sleeper(clock):
    """Sleeps on a clock that does not move otherwise."""
    return Sleeper(clock, clock.sleep)


@pytest.mark.parametrize("place", [*PLACES, "a garbage collection in the model"])
def test_time_is_in_its_stage_and_in_no_other(tmp_path, sleeper, place):
    owner, install = PLACES.get(place, ("gc", collection))
    steps = fit(tmp_path, install, sleeper)
    assert sleeper.slept.keys() == {*SLOW}
    for stage in (*STAGES, "step"):
        expected = {number: SLEEP if number in SLOW and stage in {owner, "step"} else 0 for number in steps}
        assert {number: step[f"{stage}_time"] for number, step in steps.items()} == pytest.approx(expected, abs=1e-6)


EVALUATING = {"eval_strategy": "steps", "eval_steps": 2}
SAVING = {"save_strategy": "steps", "save_steps": 2}
ASIDE = {
    "evaluate of a subclass": ("evaluation", subclass("evaluate"), EVALUATING),
    "on_evaluate of another callback": ("evaluation", hook("on_evaluate"), EVALUATING),
    "on_prediction_step of another callback": ("evaluation", hook("on_prediction_step"), EVALUATING),
    "evaluate for another callback": ("evaluation", asking(lambda trainer: trainer.evaluate()), {}),
    "predict for another callback": ("evaluation", asking(lambda trainer: trainer.predict(tiny.Tokens(4))), {}),
    "_save_checkpoint of a subclass": ("checkpoint", subclass("_save_checkpoint"), SAVING),
    "save_model of a subclass": ("checkpoint", subclass("save_model"), SAVING),
}


@pytest.mark.parametrize("place", ASIDE)
def test_evaluations_and_checkpoints_are_in_no_step_and_the_steps_they_fall_in_are_in_no_row(tmp_path, sleeper, place):
    kind, install, arguments = ASIDE[place]
    sleeper.steps = (3, 4, 5, 6, 7, 8, 9, 10)
    steps = fit(tmp_path, install, sleeper, max_steps=9, **arguments)
    interrupted = {*sleeper.slept}
    assert interrupted >= ({3, 5, 7, 9} if arguments else {*SLOW})
    assert {number: step["excluded"] for number, step in steps.items() if number > 1} == {
        number: kind if number in interrupted else None for number in range(2, 10)
    }
    assert {step["step_time"] for step in steps.values()} == {0.0}
    spans = {span.step + 1: span.seconds for span in tiny.records(tmp_path, Span) if span.kind == kind}
    assert spans == pytest.approx(sleeper.slept)


@pytest.mark.parametrize("place", ["a layer", "the optimizer"])
def test_on_the_real_clock_a_sleep_is_in_its_stage_and_stages_sum_to_the_step(tmp_path, place):
    owner, install = PLACES[place]
    sleep = Sleeper()
    steps = fit(tmp_path, install, sleep)
    assert all(steps[number][f"{owner}_time"] > seconds - 1e-6 for number, seconds in sleep.slept.items())
    for step in steps.values():
        assert sum(step[f"{stage}_time"] for stage in STAGES) == pytest.approx(step["step_time"], abs=1e-6)
