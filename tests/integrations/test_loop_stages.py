"""Sleeps of known length land in the stage they belong to, in full, and in no other."""

import copy
import gc
import pickle
import threading
from contextlib import nullcontext
from functools import partial
from io import BytesIO

import pytest
import torch
from slow_backward import SlowBackward
from tiny import records, steps as steps_of
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from perf_callbacks import PerfConfig
from perf_callbacks.kernel.records.fit_records import Span
from perf_callbacks.loop import measure

STAGES = ("data", "forward", "backward", "optimizer", "gc", "other")
SLOW = {step: 0.005 * (1, 2, 4, 6)[step // 2 % 4] for step in range(4, 25, 2)}  # seconds by step
STEPS = 25
ROUNDING = 1e-9


@pytest.fixture(autouse=True)
def _still(monkeypatch, clock):
    monkeypatch.setattr(Pause, "clock", clock)


class Pause:
    """Sleeps once in every slow step, at one place, and keeps how long that took."""

    clock = None

    def __init__(self, place):
        self.place = place
        self.thread = threading.get_ident()
        self.step = 1
        self.slept = {}
        self.ends = []

    def __call__(self, place):
        here = place == self.place and threading.get_ident() == self.thread
        if here and self.step in SLOW.keys() - self.slept.keys():
            self.clock.sleep(SLOW[self.step])
            self.slept[self.step] = SLOW[self.step]

    def end_step(self):
        self.step += 1
        self.ends.append(self.clock())


class Rows(Dataset):
    def __init__(self, pause):
        self.pause = pause

    def __len__(self):
        return 4 * STEPS

    def __getitem__(self, index):
        self.pause("dataset")
        return torch.ones(4)


class Garbage:
    def __init__(self, pause):
        self.pause, self.me = pause, self

    def __del__(self):
        self.pause("collection")


class Model(nn.Module):
    def __init__(self, pause):
        super().__init__()
        self.linear, self.pause = nn.Linear(4, 1), pause

    def forward(self, inputs):
        self.pause("recomputation" if torch._C._current_graph_task_id() >= 0 else "model")
        if self.pause.place == "collection":
            Garbage(self.pause)
            gc.collect(0)
        return SlowBackward.apply(self.linear(inputs), self.pause)


class Checkpointed(nn.Module):
    def __init__(self, inner, *, use_reentrant):
        super().__init__()
        self.inner, self.use_reentrant = inner, use_reentrant

    def forward(self, inputs):
        return checkpoint(self.inner, inputs, use_reentrant=self.use_reentrant)


class Optimizer(torch.optim.Optimizer):
    def __init__(self, model, pause):
        super().__init__(model.parameters(), {})
        self.pause = pause

    def step(self, closure=None):
        if closure is not None:
            closure()
        self.pause("step")

    def zero_grad(self, set_to_none=True):  # noqa: FBT002 as in torch
        self.pause("zero_grad")
        super().zero_grad(set_to_none)


def uncounted(directory):
    """Counting FLOPs would take its time in the second step."""
    return PerfConfig(output_dir=str(directory), flops="off")


def train(directory, pause, *, model=None, call=lambda model, inputs: model(inputs), after_step=lambda *_: None):
    """A loop of 25 steps with two micro-batches each."""
    model = Model(pause) if model is None else model
    optimizer = Optimizer(model, pause)

    def collate(rows):
        pause("collate")
        return torch.stack(rows).requires_grad_()

    loader = DataLoader(Rows(pause), batch_size=2, collate_fn=collate)
    with measure(model=model, optimizer=optimizer, loader=loader, config=uncounted(directory)) as perf:
        for index, inputs in enumerate(perf.loader):
            outputs = call(model, inputs)
            pause("loss")
            outputs.mean().backward()
            pause("clipping" if index % 2 else "between micro-batches")
            if index % 2:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                pause.end_step()
                pause("scheduler")
                optimizer.zero_grad()
                pause("logging")
                after_step(perf, model)
    return by_number(directory)


def by_number(directory):
    """Of each step its time, its stages and why it is excluded."""
    return {
        step["step"]: {"excluded": step["excluded"], "step": step["step_time"]}
        | {stage: step[f"{stage}_time"] for stage in STAGES}
        for step in steps_of(directory)
    }


def assert_slept_in(stage, steps, pause):
    assert pause.slept == SLOW
    assert {number: step["excluded"] for number, step in steps.items() if step["excluded"]} == {1: "first"}
    for name in STAGES:
        expected = {number: SLOW.get(number, 0) if name == stage else 0 for number in steps}
        assert {number: step[name] for number, step in steps.items()} == pytest.approx(expected, abs=ROUNDING)


@pytest.mark.parametrize(
    ("place", "stage"),
    [
        ("dataset", "data"),
        ("collate", "data"),
        ("model", "forward"),
        ("loss", "forward"),
        ("backward", "backward"),
        ("between micro-batches", "other"),
        ("clipping", "optimizer"),
        ("step", "optimizer"),
        ("scheduler", "other"),
        ("zero_grad", "optimizer"),
        ("logging", "other"),
        ("collection", "gc"),
    ],
)
def test_a_sleep_is_in_its_stage_and_in_no_other(tmp_path, place, stage):
    pause = Pause(place)
    assert_slept_in(stage, train(tmp_path, pause), pause)


def test_stages_sum_to_the_step_and_steps_to_the_time_that_passed(tmp_path):
    pause = Pause("model")
    steps = train(tmp_path, pause)
    for step in steps.values():
        assert sum(step[stage] for stage in STAGES) == pytest.approx(step["step"], abs=ROUNDING)
    # After the second one there is a collection that is part of none.
    measured = sum(step["step"] for number, step in steps.items() if number > 3)
    assert measured == pytest.approx(pause.ends[-1] - pause.ends[2], abs=ROUNDING)


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("whole", [True, False], ids=["whole model", "a block"])
@pytest.mark.parametrize(
    ("place", "stage"),
    [("model", "forward"), ("recomputation", "backward"), ("backward", "backward"), ("clipping", "optimizer")],
)
def test_recomputation_is_backward(tmp_path, place, stage, whole, use_reentrant):
    pause = Pause(place)
    inner = Model(pause)
    if whole:
        steps = train(tmp_path, pause, model=inner, call=partial(checkpoint, use_reentrant=use_reentrant))
    else:
        steps = train(tmp_path, pause, model=Checkpointed(inner, use_reentrant=use_reentrant))
    assert_slept_in(stage, steps, pause)


class Traceable(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, inputs):
        return self.linear(inputs)


@pytest.mark.parametrize("way", ["wrapped", "in place before", "in place inside the block"])
def test_the_call_of_a_compiled_model_is_forward(tmp_path, way):
    pause = Pause("graph")

    def backend(graph, _inputs):  # as "eager", with a sleep
        def run(*args):
            pause("graph")
            return graph.forward(*args)

        return run

    torch._dynamo.reset()
    model, compiled_here = Traceable(), []

    def call(model, inputs):
        if way == "in place inside the block" and not compiled_here:
            compiled_here.append(model.compile(backend=backend, fullgraph=True))
        return model(inputs)

    if way == "in place before":
        model.compile(backend=backend, fullgraph=True)
    compiled = torch.compile(model, backend=backend, fullgraph=True) if way == "wrapped" else model
    assert_slept_in("forward", train(tmp_path, pause, model=compiled, call=call), pause)


def test_what_follows_the_closure_in_an_optimizer_step_is_optimizer(tmp_path):
    pause = Pause("step")
    model = Model(pause)
    optimizer = Optimizer(model, pause)
    batches = [torch.ones(2, 4)] * STEPS
    with measure(model=model, optimizer=optimizer, loader=batches, config=uncounted(tmp_path)) as perf:
        for inputs in perf.loader:

            def closure(inputs=inputs):
                optimizer.zero_grad()
                model(inputs).mean().backward()

            optimizer.step(closure)
            pause.end_step()
    assert_slept_in("optimizer", by_number(tmp_path), pause)


def through_a_file(model):
    file = BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


class Inert(nn.Module):
    """Pickles, and sleeps in its forward once it is told how."""

    pause = staticmethod(lambda _place: None)

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, inputs):
        type(self).pause("copy" if hasattr(self, "copied") else "model")
        return self.linear(inputs)


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
def test_a_copy_of_the_model_is_not_the_model(tmp_path, monkeypatch, duplicate, context):
    pause = Pause("copy")
    monkeypatch.setattr(Inert, "pause", pause)

    def average(_perf, model):
        other = duplicate(model)
        other.copied = True
        other.train(context is nullcontext)
        with context():
            other(torch.ones(2, 4))

    assert_slept_in("other", train(tmp_path, pause, model=Inert(), after_step=average), pause)


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
def test_another_thread_does_not_disturb(tmp_path, work, same):
    pause, done = Pause("dataset"), threading.Event()
    model = Model(pause)
    other = model if same else Model(pause)

    def keep_working():
        while not done.wait(0.001):
            work(other)

    thread = threading.Thread(target=keep_working)
    thread.start()
    try:
        steps = train(tmp_path, pause, model=model)
    finally:
        done.set()
        thread.join()
    assert_slept_in("data", steps, pause)


class Interruption:
    """After some steps, something that belongs to none."""

    after = tuple(range(3, STEPS, 2))

    def __init__(self, body):
        self.body = body
        self.took = []

    def __call__(self, perf, model):
        if perf.state()["step"] in self.after:
            start = Pause.clock()
            self.body(perf, model)
            self.took.append(Pause.clock() - start)


def evaluate(model):
    model.eval()
    with torch.no_grad():
        for _ in range(2):
            model(torch.ones(2, 4))
            Pause.clock.sleep(0.01)
    model.train()


def evaluate_explicitly(perf, model):
    with perf.evaluation():
        evaluate(model)


def evaluate_in_inference_mode(_perf, model):
    with torch.inference_mode():
        model.eval()(torch.ones(2, 4))
        Pause.clock.sleep(0.02)
    model.train()


def save(perf, _model):
    with perf.checkpoint():
        Pause.clock.sleep(0.02)


def save_within_evaluation(perf, model):
    with perf.evaluation():
        save(perf, model)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("evaluation", evaluate_explicitly),
        ("evaluation", lambda _perf, model: evaluate(model)),
        ("evaluation", evaluate_in_inference_mode),
        ("evaluation", save_within_evaluation),
        ("checkpoint", save),
    ],
    ids=["explicit evaluation", "evaluation seen by itself", "inference mode", "nested", "checkpoint"],
)
def test_the_step_in_which_an_interruption_falls_is_named_and_does_not_hold_its_time(tmp_path, kind, body):
    interruption = Interruption(body)
    steps = train(tmp_path, Pause("nowhere"), after_step=interruption)
    hit = [number + 1 for number in Interruption.after]
    assert {number: step["excluded"] for number, step in steps.items() if step["excluded"]} == {
        1: "first",
        **dict.fromkeys(hit, kind),
    }
    spans = records(tmp_path, Span)
    assert [(span.kind, span.step) for span in spans] == [(kind, number) for number in Interruption.after]
    assert [span.seconds for span in spans] == pytest.approx(interruption.took)
    assert {step["step"] for step in steps.values()} == {0.0}


def test_an_evaluation_that_nothing_follows_is_recorded(tmp_path):
    after = Interruption(lambda _perf, model: evaluate(model))
    after.after = (STEPS,)
    train(tmp_path, Pause("nowhere"), after_step=after)
    (span,) = records(tmp_path, Span)
    assert (span.kind, span.step) == ("evaluation", STEPS)


@pytest.mark.parametrize(
    ("training", "context"), [(True, torch.no_grad), (False, nullcontext)], ids=["no gradients", "eval mode"]
)
def test_a_call_without_gradients_or_in_eval_mode_alone_is_forward(tmp_path, training, context):
    pause = Pause("model")
    teacher = []

    def call(model, inputs):
        model.train(training)
        with context():
            teacher.append(model(inputs).shape)
        return model(inputs)

    assert_slept_in("forward", train(tmp_path, pause, call=call), pause)
    assert teacher
