"""Stages of a plain loop: recomputation, compiled models, closures, copies of the model, other threads."""

import copy
import pickle
import threading
from contextlib import nullcontext
from functools import partial
from io import BytesIO

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from trainings.models import Model, Optimizer
from trainings.plain_loop import LoopTraining
from trainings.runs import records, steps as steps_of
from trainings.sleep import Sleep, assert_in_stage, fit

from perf_callbacks import PerfConfig
from perf_callbacks.kernel.records.fit_records import Span
from perf_callbacks.loop import measure


@pytest.fixture
def sleep(clock):
    return Sleep(clock.sleep)


def assert_slept_in(stage, directory, sleep, place, **options):
    """Train a loop that sleeps at a place, and expect each sleep in one stage."""
    assert_in_stage(stage, fit(directory, LoopTraining, place, sleep, steps=7, **options), sleep)


class Recomputed(Model):
    """A model with a place in its recomputation."""

    def forward(self, inputs):
        if torch._C._current_graph_task_id() < 0:
            return super().forward(inputs)
        self.at("recomputation")
        return super().forward(inputs)


class Checkpointed(nn.Module):
    """A model that computes its only block again in the backward."""

    def __init__(self, at, *, use_reentrant):
        super().__init__()
        self.inner, self.use_reentrant = Recomputed(at), use_reentrant

    def forward(self, inputs):
        return checkpoint(self.inner, inputs, use_reentrant=self.use_reentrant)


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("whole", [True, False], ids=["whole model", "a block"])
@pytest.mark.parametrize(
    ("place", "stage"),
    [("the model", "forward"), ("recomputation", "backward"), ("a gradient", "backward"), ("clipping", "optimizer")],
)
def test_recomputation_is_backward(tmp_path, sleep, place, stage, whole, use_reentrant):  # noqa: PLR0917 crossed
    options = {"model": partial(Checkpointed, use_reentrant=use_reentrant)}
    if whole:
        options = {"model": Recomputed, "call": partial(checkpoint, use_reentrant=use_reentrant)}
    assert_slept_in(stage, tmp_path, sleep, place, **options)


class Traceable(nn.Module):
    """A model that compiles and pickles."""

    def __init__(self, _at=None):
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, inputs):
        return self.linear(inputs)


@pytest.mark.parametrize("way", ["wrapped", "in place before", "in place inside the block"])
def test_the_call_of_a_compiled_model_is_forward(tmp_path, sleep, way):
    def backend(graph, _inputs):  # as "eager", with a sleep
        def run(*args):
            sleep()
            return graph.forward(*args)

        return run

    torch._dynamo.reset()
    compiled_here = []

    def compiled(_at):
        model = Traceable()
        if way == "in place before":
            model.compile(backend=backend, fullgraph=True)
        return torch.compile(model, backend=backend, fullgraph=True) if way == "wrapped" else model

    def call(model, inputs):
        if way == "in place inside the block" and not compiled_here:
            compiled_here.append(model.compile(backend=backend, fullgraph=True))
        return model(inputs)

    assert_slept_in("forward", tmp_path, sleep, None, model=compiled, call=call)


class Closed(Optimizer):
    """An optimizer that calls its closure."""

    def step(self, closure):
        closure()
        super().step()


def test_the_work_after_the_closure_of_an_optimizer_is_optimizer(tmp_path, sleep):
    training = sleep.training = LoopTraining(tmp_path, "the optimizer", sleep)
    model = training.model
    optimizer, batches = Closed(model, training.at), [torch.ones(2, 4)] * 7
    config = PerfConfig(output_dir=str(tmp_path), flops="off")
    with measure(model=model, optimizer=optimizer, loader=batches, config=config) as perf:
        for inputs in perf.loader:

            def closure(inputs=inputs):
                optimizer.zero_grad()
                model(inputs).mean().backward()

            optimizer.step(closure)
            training.step += 1
    assert_in_stage("optimizer", {step["step"]: step for step in steps_of(tmp_path)}, sleep)


def through_a_file(model):
    file = BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def attribute_by_attribute(model):
    other = type(model).__new__(type(model))
    other.__dict__.update(model.__dict__)
    other.linear = copy.deepcopy(model.linear)
    other._modules = {"linear": copy.deepcopy(model.linear)}
    return other


@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)), through_a_file, attribute_by_attribute],
    ids=["deepcopy", "pickle", "torch.save", "attribute by attribute"],
)
@pytest.mark.parametrize("context", [nullcontext, torch.no_grad], ids=["training", "evaluating"])
def test_a_copy_of_the_model_is_not_the_model(tmp_path, monkeypatch, sleep, duplicate, context):
    forward = Traceable.forward

    def slow(self, inputs):
        if hasattr(self, "copied"):
            sleep()
        return forward(self, inputs)

    monkeypatch.setattr(Traceable, "forward", slow)

    def average(_step):
        other = duplicate(sleep.training.model)
        other.copied = True
        other.train(context is nullcontext)
        with context():
            other(torch.ones(2, 4))

    assert_slept_in("other", tmp_path, sleep, None, model=Traceable, after_step=average)


def train_quietly(model):
    model(torch.ones(2, 4)).mean().backward()


def predict(model):
    with torch.no_grad():
        model(torch.ones(2, 4))


@pytest.mark.parametrize(
    ("work", "same"),
    [(train_quietly, False), (predict, False), (predict, True)],
    ids=["training another model", "predicting with another model", "predicting with the same model"],
)
def test_another_thread_does_not_disturb_the_stages(tmp_path, sleep, work, same):
    done, models = threading.Event(), []

    def make(_at):
        models.append(Traceable())
        return models[0]

    def keep_working():
        other = None if same else Traceable()
        while not done.wait(0.001):
            if models:
                work(models[0] if same else other)

    thread = threading.Thread(target=keep_working)
    thread.start()
    try:
        assert_slept_in("data", tmp_path, sleep, "the dataset", model=make)
    finally:
        done.set()
        thread.join()


def test_an_evaluation_at_the_end_has_a_span(tmp_path, sleep):
    def evaluate_last(step):
        if step == 7:
            predict(sleep.training.model.eval())

    fit(tmp_path, LoopTraining, None, sleep, steps=7, after_step=evaluate_last)
    (span,) = records(tmp_path, Span)
    assert (span.kind, span.step) == ("evaluation", 7)


@pytest.mark.parametrize(
    ("training", "context"), [(True, torch.no_grad), (False, nullcontext)], ids=["no gradients", "eval mode"]
)
def test_a_call_without_gradients_or_in_eval_mode_alone_is_forward(tmp_path, sleep, training, context):
    teacher = []

    def call(model, inputs):
        model.train(training)
        with context():
            teacher.append(model(inputs).shape)
        return model(inputs)

    class Slow(Traceable):
        def forward(self, inputs):
            sleep()
            return super().forward(inputs)

    assert_slept_in("forward", tmp_path, sleep, None, model=Slow, call=call)
    assert teacher
