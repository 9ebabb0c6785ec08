"""What arrives in the logs of a real Trainer, and whether the amounts are those that the model saw."""

import pytest
import torch
from metric_keys import LOGGED, ON_CPU, keys, of_run
from trainings import models, runs
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainerCallback,
)
from transformers.integrations import TensorBoardCallback

from perf_callbacks import PerfConfig
from perf_callbacks.kernel.process import terminal
from perf_callbacks.kernel.records.fit_records import Row, Span, Summary
from perf_callbacks.transformers import PerfCallback

STAGES = ("data", "forward", "backward", "optimizer", "gc", "other")
AMOUNTS = ("samples", "tokens", "useful_tokens")
RUN = {*of_run(LOGGED)}
INTERRUPTIONS = {"eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps", "save_steps": 4}


def perf(row):
    return {key: value for key, value in row.items() if key.startswith("perf/")}


def rows(trainer, key):
    return [row for row in trainer.state.log_history if key in row]


def fit(directory, *, late=False, **arguments):
    """A fit with evaluation and checkpoint that logs every other step; our callback given at once or added later."""
    ours = PerfCallback()
    arguments = models.training_arguments(directory, **({"logging_steps": 2} | INTERRUPTIONS | arguments))
    data = {"train_dataset": models.Tokens(24), "eval_dataset": models.Tokens(4)}
    trainer = models.trainer(arguments, *([] if late else [ours]), **data)
    if late:
        trainer.add_callback(ours)
    return ours, trainer, trainer.train()


either_way = pytest.mark.parametrize("late", [False, True], ids=["given to the constructor", "added afterwards"])


@either_way
@pytest.mark.parametrize("accumulation", [1, 2])
def test_every_training_row_has_all_metrics_and_no_evaluation_row_has_any(tmp_path, late, accumulation):
    _, trainer, output = fit(tmp_path, late=late, gradient_accumulation_steps=accumulation)
    training, evaluations, whole = (rows(trainer, key) for key in ("loss", "eval_loss", "train_runtime"))
    # The first row covers the first step and the counted one.
    assert [perf(row).keys() for row in training] == [set(), LOGGED, LOGGED]
    assert [perf(row) for row in evaluations] == [{}] * 2
    assert [perf(row) for row in whole] == [perf(output.metrics)]
    assert perf(output.metrics).keys() == RUN
    assert {type(value) for row in (*training, *whole) for value in perf(row).values()} <= {int, float}


@either_way
def test_tensorboard_gets_the_metrics_at_the_step_of_the_loss(tmp_path, late):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    ours, trainer, _ = fit(tmp_path, late=late, report_to="tensorboard")
    callbacks = trainer.callback_handler.callbacks
    assert callbacks.index(ours) < next(
        i for i, other in enumerate(callbacks) if isinstance(other, TensorBoardCallback)
    )
    (events,) = tmp_path.rglob("events.out.tfevents.*")
    written = EventAccumulator(str(events)).Reload()
    assert {name for name in written.Tags()["scalars"] if "perf/" in name} == {f"train/{key}" for key in LOGGED | RUN}
    for key in LOGGED | RUN:
        steps, values = zip(*[(row["step"], row[key]) for row in trainer.state.log_history if key in row], strict=True)
        events = written.Scalars(f"train/{key}")
        assert tuple(event.step for event in events) == steps
        assert tuple(event.value for event in events) == pytest.approx(values)


def test_a_row_covers_the_undisturbed_steps_since_the_row_before_it(tmp_path):
    _, trainer, _ = fit(tmp_path)
    excluded = [step["excluded"] for step in runs.steps(tmp_path)]
    assert excluded == ["first", "counted", None, "evaluation", "checkpoint", None]
    time = [step["step_time"] for step in runs.steps(tmp_path)]
    measured = [row["perf/step_time"] for row in rows(trainer, "perf/step_time") if "loss" in row]
    assert measured == pytest.approx([time[2], time[5]], rel=1e-4)


def test_the_last_line_covers_the_whole_run(tmp_path):
    ours, _, output = fit(tmp_path)
    assert output.metrics["perf/run/step_time"] == pytest.approx(ours.summary.step_time, rel=1e-5)
    assert (ours.summary.steps, ours.summary.included_steps, ours.summary.failure) == (6, 2, None)


def test_the_journal_holds_what_was_logged(tmp_path):
    ours, trainer, _ = fit(tmp_path)
    logged = [(row["step"], perf(row)) for row in trainer.state.log_history if perf(row)]
    journal = [(row.step, row.metrics) for row in runs.records(tmp_path, Row)]
    assert [step for step, _ in journal] == [step for step, _ in logged]
    for (_, metrics), (_, row) in zip(journal[:-1], logged[:-1], strict=True):
        assert row.items() <= metrics.items()
        assert metrics.keys() - row.keys() == keys(*ON_CPU) - LOGGED
    assert [(span.kind, span.step) for span in runs.records(tmp_path, Span)] == [
        ("evaluation", 3),
        ("checkpoint", 4),
        ("evaluation", 6),
        ("checkpoint", 6),
    ]
    assert runs.records(tmp_path, Summary)[0].total_samples == ours.summary.total_samples == 24


def test_a_sequence_to_sequence_trainer_logs_them_too(tmp_path):
    model = T5ForConditionalGeneration(
        T5Config(
            vocab_size=models.VOCABULARY, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0
        )
    )
    arguments = models.training_arguments(tmp_path, kind=Seq2SeqTrainingArguments, max_steps=3)
    trainer = models.trainer(arguments, PerfCallback(), kind=Seq2SeqTrainer, model=model)
    assert perf(trainer.train().metrics).keys() == RUN
    assert [step["tokens"] for step in runs.steps(tmp_path)] == [64] * 3


class Seen(TrainerCallback):
    """What went through the model, by optimizer step."""

    def __init__(self):
        self.steps = {}

    def on_train_begin(self, args, state, control, model, **_):
        def look(module, _args, kwargs):
            if module.training:
                ids, mask = kwargs["input_ids"], kwargs.get("attention_mask")
                useful = None if mask is None else int(mask.sum())
                self.steps.setdefault(state.global_step + 1, []).append((len(ids), ids.numel(), useful))

        model.register_forward_pre_hook(look, with_kwargs=True)

    def sums(self, column, steps=None):
        return [sum(batch[column] for batch in self.steps[step]) for step in steps or self.steps]


class Stream(torch.utils.data.IterableDataset):
    """Rows without a length."""

    def __iter__(self):
        return iter([models.Tokens(22, (16, 5))[index] for index in range(22)])


@pytest.mark.parametrize(
    ("rows", "arguments"),
    [
        (models.Tokens(22, (16, 5, 9)), {}),
        (models.Tokens(22, (16, 5, 9)), {"gradient_accumulation_steps": 4}),
        (models.Tokens(22), {"gradient_accumulation_steps": 4, **INTERRUPTIONS}),
        (models.Tokens(22, mask=False), {"dataloader_drop_last": True}),
        (Stream(), {"gradient_accumulation_steps": 4}),
    ],
    ids=["padded", "padded, accumulated", "accumulated, interrupted", "no mask, no ragged batch", "no length"],
)
def test_samples_and_tokens_are_those_that_the_model_saw(tmp_path, rows, arguments):
    ours, seen = PerfCallback(), Seen()
    arguments = models.training_arguments(tmp_path, max_steps=7, logging_steps=7, **arguments)
    models.trainer(arguments, ours, seen, train_dataset=rows, eval_dataset=models.Tokens(4)).train()
    steps = runs.steps(tmp_path)
    assert [step["step"] for step in steps] == [*seen.steps] == [1, 2, 3, 4, 5, 6, 7]
    assert [step["samples"] for step in steps] == seen.sums(0)
    assert [step["tokens"] for step in steps] == seen.sums(1)
    included = [step["step"] for step in steps if step["excluded"] is None]
    useful = None if getattr(rows, "mask", True) is False else sum(seen.sums(2, included))
    assert ours.summary.included_useful_tokens == useful
    assert (ours.summary.total_samples, ours.summary.total_tokens) == (sum(seen.sums(0)), sum(seen.sums(1)))


def test_without_a_journal_the_metrics_are_logged_all_the_same(tmp_path):
    trainer = models.trainer(models.training_arguments(tmp_path), PerfCallback(PerfConfig(journal=False)))
    assert perf(trainer.train().metrics).keys() == RUN
    assert not (tmp_path / "perf_callbacks").exists()


def test_the_journal_goes_where_the_configuration_says(tmp_path):
    config = PerfConfig(output_dir=str(tmp_path / "elsewhere"))
    models.trainer(models.training_arguments(tmp_path / "here"), PerfCallback(config)).train()
    assert len(runs.steps(tmp_path / "elsewhere")) == 6
    assert not (tmp_path / "here" / "perf_callbacks").exists()


@pytest.mark.parametrize(
    ("steps", "logging_steps", "measured"),
    [(4, 10, True), (1, 1, False), (1, 10, False), (2, 1, False), (2, 10, False), (3, 1, True)],
)
def test_a_run_that_is_shorter_than_its_logging_still_says_what_it_knows(tmp_path, steps, logging_steps, measured):
    ours = PerfCallback()
    arguments = models.training_arguments(tmp_path, max_steps=steps, logging_steps=logging_steps)
    metrics = models.trainer(arguments, ours).train().metrics
    assert perf(metrics).keys() == (RUN if measured else set())
    assert (ours.summary.steps, ours.summary.included_steps) == (steps, max(steps - 2, 0))
    assert [step["excluded"] for step in runs.steps(tmp_path)] == ["first", "counted", None, None][:steps]


def test_the_try_that_fits_into_memory_is_the_one_that_is_measured(tmp_path):
    ours, tried = PerfCallback(), []

    def collate(items):
        tried.append(len(items))
        if len(items) == 4:
            raise RuntimeError("CUDA out of memory.")
        return torch.utils.data.default_collate(items)

    arguments = models.training_arguments(tmp_path, auto_find_batch_size=True, max_steps=5)
    trainer = models.trainer(arguments, ours, data_collator=collate)
    metrics = trainer.train().metrics
    size = tried[-1]
    assert tried[0] == 4 > size
    assert perf(metrics).keys() == RUN
    assert [step["samples"] for step in runs.steps(tmp_path)] == [size] * 5
    assert [row.failure for row in runs.records(tmp_path, Summary, attempt=0)] == ["RuntimeError: CUDA out of memory."]
    assert (ours.summary.steps, ours.summary.total_samples, ours.summary.failure) == (5, 5 * size, None)


def test_cards_are_no_wider_than_the_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(terminal, "columns", lambda: 48)
    models.trainer(models.training_arguments(tmp_path), PerfCallback(PerfConfig(journal=False))).train()
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("{")]
    assert 40 < max(map(len, lines)) <= 48


class Skipping(Trainer):
    """Skips every third batch: its `training_step` calls neither the model nor a backward."""

    seen = 0

    def training_step(self, model, inputs, num_items_in_batch=None):
        self.seen += 1
        if self.seen % 3 == 0:
            return torch.tensor(0.0)
        return super().training_step(model, inputs, num_items_in_batch)


class SkippingByHand(Skipping):
    """The same with forward and backward of its own."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        self.seen += 1
        if self.seen % 3 == 0:
            return torch.tensor(0.0)
        loss = model(**inputs).loss
        loss.backward()
        return loss.detach()


@pytest.mark.parametrize("kind", [Skipping, SkippingByHand])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_batch_that_a_training_step_skips_has_no_samples(tmp_path, kind, accumulation):
    ours = PerfCallback(PerfConfig(gc="off"))
    arguments = models.training_arguments(tmp_path, max_steps=12, gradient_accumulation_steps=accumulation)
    trainer = models.trainer(arguments, ours, kind=kind, train_dataset=models.Tokens(4 * 12 * accumulation))
    before = torch.autograd.backward
    trainer.train()
    trained = [place % 3 != 0 for place in range(1, 12 * accumulation + 1)]
    steps = [sum(trained[first : first + accumulation]) for first in range(0, len(trained), accumulation)]
    assert [step["samples"] for step in runs.steps(tmp_path)] == [4 * batches for batches in steps]
    assert (ours.summary.samples, ours.summary.tokens) == (4 * sum(trained), 64 * sum(trained))
    assert torch.autograd.backward is before
    flops = {
        step["model_flops"] / batches
        for step, batches in zip(runs.steps(tmp_path), steps, strict=True)
        if step["model_flops"]
    }
    assert len(flops) == 1


class ZerothOrder(Trainer):
    """Trains without a backward, as MeZO does."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        with torch.no_grad():
            loss = self.compute_loss(model, inputs)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        return loss


class ZerothOrderByHand(Trainer):
    """The same without `compute_loss`, which nothing tells from a batch that is skipped."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        with torch.no_grad():
            return model(**inputs).loss


@pytest.mark.parametrize(("kind", "samples"), [(ZerothOrder, 24), (ZerothOrderByHand, None)])
def test_a_training_without_any_backward_has_samples(tmp_path, kind, samples):
    ours = PerfCallback(PerfConfig(gc="off"))
    arguments = models.training_arguments(tmp_path, max_steps=6)
    models.trainer(arguments, ours, kind=kind, train_dataset=models.Tokens(24)).train()
    assert (ours.summary.steps, ours.summary.samples) == (6, samples)


class Renaming(Trainer):
    """Renames the loss, as SetFit does, and logs a value of its own within each step."""

    def log(self, logs, *rest, **more):
        super().log({"embedding_loss" if name == "loss" else name: logs[name] for name in logs}, *rest, **more)

    def compute_loss(self, *values, **more):
        if self.model.training:
            self.log({"margin": 0.5})
        return super().compute_loss(*values, **more)


@pytest.mark.parametrize("counts_tokens", ["no", "all"])  # with "all", each log has `train_runtime`
def test_a_training_row_needs_no_loss_of_that_name(tmp_path, counts_tokens):
    data = {"train_dataset": models.Tokens(32), "eval_dataset": models.Tokens(4)}
    arguments = {"max_steps": 8, "include_num_input_tokens_seen": counts_tokens, "logging_steps": 2}
    arguments = models.training_arguments(tmp_path, eval_strategy="steps", eval_steps=4, **arguments)
    trainer = models.trainer(arguments, PerfCallback(), kind=Renaming, **data)
    trainer.train()
    shown = [(row["step"], perf(row).keys()) for row in trainer.state.log_history if perf(row)]
    assert shown == [(4, LOGGED), (6, LOGGED), (8, LOGGED), (8, RUN)]


class Scores(TrainerCallback):
    """Logs values by number."""

    def on_step_end(self, args, state, control, **_):
        self.trainer.log({3: 0.5})


def test_a_log_may_have_names_that_are_no_text(tmp_path):
    scores, ours = Scores(), PerfCallback()
    scores.trainer = models.trainer(models.training_arguments(tmp_path, max_steps=6), ours, scores)
    scores.trainer.train()
    assert (ours.summary.steps, ours.summary.failure) == (6, None)
