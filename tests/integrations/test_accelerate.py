"""What the Accelerate door counts and logs in loops that know nothing of it, and what it gets along with."""

import copy
import functools
import gc
import inspect
import pickle
from contextlib import nullcontext
from importlib.metadata import version

import pytest
import torch
from accelerate import Accelerator
from accelerate.data_loader import DataLoaderDispatcher, DataLoaderShard
from accelerate.utils import DataLoaderConfiguration
from metric_keys import LOGGED, of_run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from trainings.accelerated import an_accelerator, evaluate, prepared, rows_of_tokens, train
from trainings.models import Tokens, llama
from trainings.runs import records, steps

from perf_callbacks import PerfConfig
from perf_callbacks.accelerate import attach
from perf_callbacks.kernel.records.fit_records import Row, Run, Span, Summary

pytestmark = pytest.mark.usefixtures("accelerate_state")

FORKED = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def test_an_unmodified_loop_reaches_tensorboard_beside_the_loss(tmp_path):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4, log_with="tensorboard", project_dir=tmp_path)
    perf = attach(accelerator)
    accelerator.init_trackers("run")
    train(accelerator, *prepared(accelerator, rows_of_tokens(34), rows_of_tokens(6)), epochs=2)
    accelerator.end_training()

    assert [(step["step"], step["samples"]) for step in steps(tmp_path)] == [
        (number, 2 if number in {5, 10} else 8) for number in range(1, 11)
    ]
    excluded = {1: "first", 2: "counted", 6: "evaluation"}
    assert {step["step"]: step["excluded"] for step in steps(tmp_path) if step["excluded"]} == excluded
    assert [(span.kind, span.step) for span in records(tmp_path, Span)] == [("evaluation", 5), ("evaluation", 10)]

    events = EventAccumulator(str(tmp_path / "run"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [100 + number for number in range(1, 11)]
    included = [number for number in range(1, 11) if number not in excluded]
    rows = {row.step: row.metrics for row in records(tmp_path, Row) if "perf/step_time" in row.metrics}
    assert [*rows] == included
    for key in ("perf/step_time", "perf/samples_per_second", "perf/tokens_per_second", "perf/data_time"):
        logged = {event.step: event.value for event in events.Scalars(key)}
        assert logged == pytest.approx({100 + number: rows[number][key] for number in included}, rel=1e-4)
    assert perf.summary.failure is None


ENDS = {
    "end_training": lambda accelerator, _: accelerator.end_training(),
    "free_memory": lambda accelerator, _: accelerator.free_memory(),
    "close": lambda _, attachment: attachment.close(),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_the_trackers_get_the_averages_of_a_fit_at_its_end(tmp_path, end):
    accelerator = an_accelerator(tmp_path)
    attachment = attach(accelerator)
    train(accelerator, *prepared(accelerator, rows_of_tokens(12)))
    end(accelerator, attachment)
    accelerator.end_training()
    (averages,) = [(step, row) for step, row in accelerator.trackers[0].rows if "perf/run/step_time" in row]
    assert averages == (106, {key: averages[1][key] for key in of_run(LOGGED)})
    assert averages[1]["perf/run/step_time"] == pytest.approx(attachment.summary.step_time, rel=1e-5)


def test_a_tracker_of_a_failed_fit_gets_no_averages(tmp_path):
    accelerator = an_accelerator(tmp_path)
    attachment = attach(accelerator)
    train(accelerator, *prepared(accelerator, rows_of_tokens(12)))
    attachment.close("ZeroDivisionError")
    assert not [row for _, row in accelerator.trackers[0].rows if "perf/run/step_time" in row]


def test_the_keys_of_the_user_win_and_his_values_are_left_as_they_are(tmp_path):
    accelerator = an_accelerator(tmp_path)
    attach(accelerator)
    model, optimizer, training, _ = prepared(accelerator, rows_of_tokens(8))
    mine = {"perf/step_time": "mine", "loss": 1.0}
    for batch in training:
        accelerator.backward(model(**batch).loss)
        optimizer.step()
        accelerator.log(values=mine, step=7)
    accelerator.end_training()
    *_, (step, last), _averages = accelerator.trackers[0].rows
    assert mine == {"perf/step_time": "mine", "loss": 1.0}
    assert (step, last["perf/step_time"], last["loss"]) == (7, "mine", 1.0)
    assert "perf/forward_time" in last


def test_a_log_without_a_new_step_is_left_alone(tmp_path):
    accelerator = an_accelerator(tmp_path)
    perf = attach(accelerator)
    values = {"note": "hello"}
    accelerator.log(values)
    assert accelerator.trackers[0].rows == [(None, values)]
    perf.close("not wanted")


class Stream(IterableDataset):
    def __iter__(self):
        yield from (Tokens()[index] for index in range(10))


def dispatching():
    return {"dataloader_config": DataLoaderConfiguration(dispatch_batches=True)}


@FORKED
@pytest.mark.parametrize(
    ("loader", "options", "expected"),
    [
        (lambda: rows_of_tokens(10, batch_size=4, num_workers=2), dict, [(4, 64), (4, 64), (2, 32)]),
        (lambda: rows_of_tokens(10, batch_size=4), dispatching, [(4, 64), (4, 64), (2, 32)]),
        (lambda: DataLoader(Stream(), batch_size=4), dict, [(4, 64), (4, 64), (2, 32)]),
        (lambda: DataLoader(Stream(), batch_size=4), dispatching, [(4, 64), (4, 64), (2, 32)]),
    ],
    ids=["two workers", "dispatched", "stream", "stream dispatched"],
)
def test_samples_and_tokens_are_exact(tmp_path, loader, options, expected):
    accelerator = an_accelerator(tmp_path, **options())
    with attach(accelerator) as perf:
        train(accelerator, *prepared(accelerator, loader()))
    assert [(step["samples"], step["tokens"]) for step in steps(tmp_path)] == expected
    samples, tokens = (sum(column) for column in zip(*expected, strict=True))
    summary = perf.summary
    assert (summary.samples, summary.tokens, summary.total_samples, summary.total_tokens) == (samples, tokens) * 2
    assert all(step["data_time"] > 0 for step in steps(tmp_path))


@pytest.mark.parametrize(("options", "kind"), [(dict, DataLoaderShard), (dispatching, DataLoaderDispatcher)])
def test_a_prepared_loader_is_what_it_was_to_everybody_else(tmp_path, options, kind):
    accelerator = an_accelerator(tmp_path, **options())
    perf = attach(accelerator)
    data = Tokens(10)
    loader = accelerator.prepare(DataLoader(data, batch_size=4))
    assert isinstance(loader, DataLoader)
    assert isinstance(loader, kind)
    assert (type(loader).__name__, type(loader).__module__) == (kind.__name__, kind.__module__)
    assert (len(loader), loader.dataset, loader.total_dataset_length) == (3, data, 10)
    loader.set_epoch(3)
    assert loader.iteration == 3
    assert [loader.end_of_dataloader for _ in loader] == [False, False, True]
    for other in (copy.copy(loader), copy.deepcopy(loader)):
        assert type(other) is kind
    assert isinstance(accelerator.skip_first_batches(loader, 1), kind)
    assert len(list(accelerator.skip_first_batches(loader, 1))) == 2
    perf.close("enough")
    assert type(loader) is kind


def test_a_measured_loader_pickles_as_it_did(tmp_path):
    accelerator = an_accelerator(tmp_path)
    loader = accelerator.prepare(rows_of_tokens(8))
    plain = pickle.dumps(loader)
    perf = attach(accelerator)
    assert pickle.dumps(loader) == plain
    perf.close("enough")


def test_metrics_gathered_in_an_evaluation_are_without_the_duplicates(tmp_path):
    accelerator = an_accelerator(tmp_path)
    with attach(accelerator):
        model, optimizer, training, validation = prepared(accelerator, rows_of_tokens(8), rows_of_tokens(5))
        train(accelerator, model, optimizer, training)
        gathered = [accelerator.gather_for_metrics(batch["input_ids"]) for batch in validation]
    assert [len(one) for one in gathered] == [2, 2, 1]


def test_a_resumed_epoch_is_measured_by_the_batches_that_are_left(tmp_path):
    accelerator = an_accelerator(tmp_path, gradient_accumulation_steps=2)
    with attach(accelerator):
        train(accelerator, *prepared(accelerator, rows_of_tokens(20)), skip=5, epochs=2)
    assert [step["samples"] for step in steps(tmp_path)] == [4, 4, 2, 4, 4, 4, 4, 4]
    assert all(step["data_time"] > 0 for step in steps(tmp_path))


def one_step(accelerator, model, optimizer, batch):
    accelerator.backward(model(**batch).loss)
    optimizer.step()
    optimizer.zero_grad()


def skipping(accelerator, model, optimizer, training, _validation):
    for number, batch in enumerate(training):
        if number >= 2:
            one_step(accelerator, model, optimizer, batch)
    return [2, 2, 1]


def leaving_early(accelerator, model, optimizer, training, _validation):
    for _epoch in range(2):
        for number, batch in enumerate(training):
            if number == 2:
                break
            one_step(accelerator, model, optimizer, batch)
    return [2, 2, 2, 2]


def fetching_ahead(accelerator, model, optimizer, training, _validation):
    batches = iter(training)
    for _step in range(2):
        for batch in [next(batches), next(batches)]:
            accelerator.backward(model(**batch).loss)
        optimizer.step()
    return [4, 4]


def taking_apart(accelerator, model, optimizer, training, _validation):
    for batch in training:
        ids, labels = batch.pop("input_ids"), batch.pop("labels")
        one_step(accelerator, model, optimizer, {"input_ids": ids, "labels": labels})
    return [2, 2, 2, 2, 1]


def two_backwards(accelerator, model, optimizer, training, _validation):
    for batch in training:
        accelerator.backward(model(**batch).loss)
        one_step(accelerator, model, optimizer, batch)
    return [2, 2, 2, 2, 1]


def side_by_side(accelerator, model, optimizer, training, validation):
    for batch, other in zip(training, validation, strict=False):
        loss = model(**batch).loss + model(**other).loss
        accelerator.backward(loss)
        optimizer.step()
    return [5, 4]


def side_by_side_and_ahead(accelerator, model, optimizer, training, validation):
    pairs = zip(training, validation, strict=False)
    pair = next(pairs)
    while pair is not None:
        following = next(pairs, None)
        accelerator.backward(model(**pair[0]).loss + model(**pair[1]).loss)
        optimizer.step()
        pair = following
    return [5, 4]


def evaluating_before_the_step(accelerator, model, optimizer, training, validation):
    for batch in training:
        evaluate(model, validation)
        model.train()
        one_step(accelerator, model, optimizer, batch)
    return [2, 2, 2, 2, 1]


def evaluating_on_the_same_loader(accelerator, model, optimizer, training, _validation):
    for batch in training:
        one_step(accelerator, model, optimizer, batch)
    evaluate(model, training)
    model.train()
    for batch in training:
        one_step(accelerator, model, optimizer, batch)
    return [2, 2, 2, 2, 1] * 2


def always_in_evaluation_mode(accelerator, model, optimizer, training, validation):
    for _epoch in range(2):
        model.eval()  # as for frozen statistics
        for batch in training:
            one_step(accelerator, model, optimizer, batch)
        evaluate(model, validation)
    return [2, 2, 2, 2, 1] * 2


def evaluating_without_eval(accelerator, model, optimizer, training, validation):
    for _epoch in range(2):
        for batch in training:
            one_step(accelerator, model, optimizer, batch)
        with torch.no_grad():
            for batch in validation:
                model(**batch)
    return [2, 2, 2, 2, 1] * 2


LOOPS = {
    skipping: (),
    leaving_early: (),
    fetching_ahead: (),
    taking_apart: (),
    two_backwards: (),
    side_by_side: (),
    side_by_side_and_ahead: (),
    evaluating_before_the_step: range(2, 6),
    evaluating_on_the_same_loader: (6,),
    always_in_evaluation_mode: (6,),
    evaluating_without_eval: (6,),
}
"""Loops, each with the steps in which an evaluation falls."""


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__.replace("_", " "))
def test_a_batch_counts_once_it_is_trained_on_and_an_evaluation_in_no_row(tmp_path, loop):
    accelerator = an_accelerator(tmp_path)
    with attach(accelerator, PerfConfig(flops="off")) as perf:
        expected = loop(accelerator, *prepared(accelerator, rows_of_tokens(9), rows_of_tokens(5, batch_size=3)))
    found = steps(tmp_path)
    assert [step["samples"] for step in found] == expected
    assert perf.summary.samples == sum(expected)
    excluded = {step["step"]: step["excluded"] for step in found if step["excluded"]}
    assert excluded == {1: "first", **dict.fromkeys(LOOPS[loop], "evaluation")}


class Twofold(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, inputs):
        return self.linear(inputs)


@pytest.mark.parametrize("way", ["before", "after", "by accelerate"])
def test_a_compiled_model_has_a_forward_and_an_evaluation(tmp_path, way):
    torch._dynamo.reset()
    accelerator = an_accelerator(tmp_path, **({"dynamo_backend": "eager"} if way == "by accelerate" else {}))
    with attach(accelerator):
        model = Twofold()
        if way == "before":
            model.compile(backend="eager")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(torch.ones(8, 4), batch_size=2))
        if way == "after":
            model.compile(backend="eager")
        for inputs in loader:
            accelerator.backward(model(inputs).mean())
            optimizer.step()
        with torch.no_grad():
            model.eval()(torch.ones(2, 4))
    assert all(step["forward_time"] > 0 for step in steps(tmp_path))
    assert [(span.kind, span.step) for span in records(tmp_path, Span)] == [("evaluation", 4)]


def test_of_several_optimizers_the_first_that_was_prepared_counts(tmp_path):
    accelerator = an_accelerator(tmp_path)
    perf = attach(accelerator, PerfConfig(flops="off"))
    generator, critic = Twofold(), Twofold()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (generator, critic)]
    generator, critic, first, second, loader = accelerator.prepare(
        generator, critic, *optimizers, DataLoader(torch.ones(10, 4), batch_size=2)
    )
    for inputs in loader:
        for _ in range(3):
            accelerator.backward(critic(generator(inputs).detach()).mean())
            second.step()
            second.zero_grad()
        accelerator.backward(critic(generator(inputs)).mean())
        first.step()
        first.zero_grad()
    accelerator.end_training()
    assert [(step["step"], step["samples"]) for step in steps(tmp_path)] == [(number, 2) for number in range(1, 6)]
    assert {step["excluded"] for step in steps(tmp_path)} == {"first", None}
    assert perf.summary.stage_seconds["optimizer_time"] > 0


def test_a_teacher_in_evaluation_mode_is_forward(tmp_path):
    accelerator = an_accelerator(tmp_path)
    with attach(accelerator):
        model, optimizer, training, _ = prepared(accelerator, rows_of_tokens(10))
        teacher = accelerator.prepare(llama().eval())
        for batch in training:
            with torch.no_grad():
                teacher(**batch)
            one_step(accelerator, model, optimizer, batch)
    assert records(tmp_path, Span) == []
    assert [step["samples"] for step in steps(tmp_path)] == [2] * 5


def test_a_step_that_was_skipped_for_an_overflow_does_not_count(tmp_path):
    accelerator = an_accelerator(tmp_path)
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    with attach(accelerator):
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(torch.ones(10, 4), batch_size=2))
        for number, inputs in enumerate(loader):
            accelerator.backward(model(inputs).mean() * (float("inf") if number == 2 else 1.0))
            optimizer.step()
            assert optimizer.step_was_skipped == (number == 2)
            optimizer.zero_grad()
    assert [(step["step"], step["samples"]) for step in steps(tmp_path)] == [(1, 2), (2, 2), (3, 4), (4, 2)]


def test_zero_grad_keeps_its_signature_also_where_somebody_wraps_it(tmp_path):
    accelerator = an_accelerator(tmp_path)
    model, _, training, _ = prepared(accelerator, rows_of_tokens(4))
    several = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2)]
    expected = inspect.signature(several[0].zero_grad)
    with attach(accelerator):
        for optimizer in several:
            accelerator.prepare(optimizer)
        train(accelerator, model, accelerator.prepare(several[0]), training)
        for optimizer in several:
            assert "zero_grad" in vars(optimizer)
            for method in (optimizer.zero_grad, functools.wraps(optimizer.zero_grad)(lambda **_: None)):
                assert inspect.signature(method) == expected


def test_a_plain_backward_and_an_own_loader_are_measured_where_possible(tmp_path):
    accelerator = an_accelerator(tmp_path)
    with attach(accelerator) as perf:
        model = nn.Linear(4, 1)
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(4):
            accelerator.backward(model(torch.ones(2, 4)).mean())
            optimizer.step()
    assert (perf.summary.steps, perf.summary.samples) == (4, None)
    assert perf.summary.stage_seconds.keys() >= {"forward_time", "backward_time", "optimizer_time"}


def test_where_nothing_was_prepared_a_sentence_says_so(tmp_path, caplog):
    accelerator = an_accelerator(tmp_path)
    attach(accelerator)
    accelerator.end_training()
    assert [record.getMessage() for record in caplog.records if record.name == "perf_callbacks"] == [
        (
            "perf_callbacks measured nothing: call attach(accelerator) before accelerator.prepare(...), and prepare "
            "the model and its optimizer with that accelerator."
        )
    ]
    assert not list(tmp_path.iterdir())


def test_freeing_memory_ends_a_fit_and_what_is_prepared_next_is_another(tmp_path):
    accelerator = an_accelerator(tmp_path)
    perf = attach(accelerator)
    for rows in (8, 12):
        model, optimizer, training, _ = prepared(accelerator, rows_of_tokens(rows))
        train(accelerator, model, optimizer, training)
        model, optimizer, training = accelerator.free_memory(model, optimizer, training)
    accelerator.end_training()
    assert [len(steps(tmp_path, attempt=number)) for number in (0, 1)] == [4, 6]
    first, second = (records(tmp_path, Run, attempt=number)[0] for number in (0, 1))
    assert (first.run_id != second.run_id, second.attempt, second.step) == (True, 1, 0)
    assert perf.summary.samples == 12


@pytest.mark.skipif(version("accelerate").startswith("1.0."), reason="1.0 keeps it, attached or not")
def test_freeing_memory_frees_the_model(tmp_path):
    accelerator = an_accelerator(tmp_path)
    with attach(accelerator):
        model, optimizer, training, _ = prepared(accelerator, rows_of_tokens(8))
        train(accelerator, model, optimizer, training)
        alive = torch.nn.Parameter.__hash__(next(model.parameters()))
        model, optimizer, training = accelerator.free_memory(model, optimizer, training)
        gc.collect()
        assert alive not in {id(one) for one in gc.get_objects() if isinstance(one, torch.nn.Parameter)}


@pytest.mark.parametrize("prepare", [nullcontext, torch.no_grad], ids=["with gradients", "without"])
def test_a_loop_that_only_evaluates_leaves_no_journal(tmp_path, prepare):
    accelerator = an_accelerator(tmp_path)
    perf = attach(accelerator, PerfConfig())
    model, _, _, validation = prepared(accelerator, rows_of_tokens(2), rows_of_tokens(8))
    model.eval()
    with prepare():
        for batch in validation:
            model(**batch)
    perf.close("only looking")
    assert perf.summary is None
    assert records_or_nothing(tmp_path) == []


def records_or_nothing(directory):
    return records(directory, Summary) if (directory / "perf_callbacks").exists() else []
