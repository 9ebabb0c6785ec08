"""The Trainer of Hugging Face: its logs and console, amounts, steps in ways of its own, and its checkpoints."""

import ast
import json
import signal
import sys
from types import ModuleType

import pytest
import torch
from jobs import python
from metric_keys import LOGGED, MAIN, ON_CPU, keys, needing, of_run
from trainings import models, runs
from trainings.runs import numbers, opened, totals
from trainings.transformers_trainer import TransformersTraining
from transformers import (
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    trainer as trainer_module,
)
from transformers.integrations import TensorBoardCallback

from perf_callbacks import PerfConfig
from perf_callbacks.kernel.process import terminal
from perf_callbacks.kernel.records.fit_records import Row, Run, Summary
from perf_callbacks.kernel.records.metric_table import DEVICES
from perf_callbacks.transformers import PerfCallback

RUN = {*of_run(LOGGED)}

ROW = [key for key in MAIN if key != "perf/samples_per_second"]

ROW_OF_RUN = of_run(ROW)
RESUMES = pytest.mark.skipif(
    not hasattr(trainer_module, "safe_globals"), reason="torch reads no state of random numbers for transformers 4.46"
)


def perf(row):
    return {key: value for key, value in row.items() if key.startswith("perf/")}


def rows(trainer, key):
    return [row for row in trainer.state.log_history if key in row]


class Stop(TrainerCallback):
    """Training ends after a step, as if it had been asked to."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **_):
        control.should_training_stop = state.global_step >= self.step


def attempt(directory, *, until, steps=12, **options):
    """Train until a step, saving a checkpoint after every second step."""
    options = {"rows": 40, "save": 2, "callbacks": [Stop(until)]} | options
    return TransformersTraining(directory, steps=steps, **options).run().trainer


def fit(directory, *callbacks, config=None, late=False, **arguments):
    """A fit with our callback, given at once or added later, and the output of the trainer."""
    ours = PerfCallback(config)
    arguments = models.training_arguments(directory, **arguments)
    data = {"train_dataset": models.Tokens(120), "eval_dataset": models.Tokens(4)}
    trainer = models.trainer(arguments, *([] if late else [ours]), *callbacks, **data)
    if late:
        trainer.add_callback(ours)
    return ours, trainer, trainer.train()


def test_each_training_row_and_the_last_line_have_metrics_and_no_evaluation_has(tmp_path):
    often = {"eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps", "save_steps": 4}
    ours, trainer, output = fit(tmp_path, gradient_accumulation_steps=2, logging_steps=2, **often)
    training, evaluations, whole = (rows(trainer, key) for key in ("loss", "eval_loss", "train_runtime"))
    # The first row covers the first step and the counted one, the second the fourth, the third the sixth.
    assert [perf(row).keys() for row in training] == [set(), LOGGED, LOGGED]
    assert [perf(row) for row in evaluations] == [{}] * 2
    assert [perf(row) for row in whole] == [perf(output.metrics)]
    assert perf(output.metrics).keys() == RUN
    assert output.metrics["perf/run/step_time"] == pytest.approx(ours.summary.step_time, rel=1e-5)
    assert {type(value) for row in (*training, *whole) for value in perf(row).values()} <= {int, float}
    journal = [(row.step, row.metrics) for row in runs.records(tmp_path, Row)]
    assert [step for step, _ in journal] == [4, 6, 6]
    for (_, metrics), row in zip(journal, training[1:], strict=False):
        assert perf(row).items() <= metrics.items()
        assert metrics.keys() - row.keys() == keys(*ON_CPU) - LOGGED


@pytest.mark.parametrize("late", [False, True], ids=["given to the constructor", "added afterwards"])
def test_tensorboard_gets_the_metrics_at_the_step_of_the_loss(tmp_path, late):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    ours, trainer, _ = fit(tmp_path, late=late, logging_steps=2, report_to="tensorboard")
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
        (models.Tokens(22, (16, 5, 9)), {"gradient_accumulation_steps": 4}),
        (models.Tokens(22, mask=False), {"dataloader_drop_last": True}),
        (Stream(), {"gradient_accumulation_steps": 4}),
    ],
    ids=["padded, accumulated", "no mask, no ragged batch", "no length"],
)
def test_samples_and_tokens_are_as_the_model_saw_them(tmp_path, rows, arguments):
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


def test_without_a_journal_metrics_are_logged_and_cards_fit_the_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(terminal, "columns", lambda: 48)
    _, _, output = fit(tmp_path, config=PerfConfig(journal=False))
    assert perf(output.metrics).keys() == RUN
    assert not (tmp_path / "perf_callbacks").exists()
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("{")]
    assert 40 < max(map(len, lines)) <= 48


def test_the_journal_goes_where_the_configuration_says(tmp_path):
    config = PerfConfig(output_dir=str(tmp_path / "elsewhere"))
    models.trainer(models.training_arguments(tmp_path / "here"), PerfCallback(config)).train()
    assert len(runs.steps(tmp_path / "elsewhere")) == 6
    assert not (tmp_path / "here" / "perf_callbacks").exists()


@pytest.mark.parametrize(
    ("steps", "logging_steps", "measured"),
    [(4, 10, True), (1, 1, False), (1, 10, False), (2, 1, False), (2, 10, False), (3, 1, True)],
)
def test_a_run_that_is_shorter_than_its_logging_has_its_averages(tmp_path, steps, logging_steps, measured):
    ours = PerfCallback()
    arguments = models.training_arguments(tmp_path, max_steps=steps, logging_steps=logging_steps)
    metrics = models.trainer(arguments, ours).train().metrics
    assert perf(metrics).keys() == (RUN if measured else set())
    assert (ours.summary.steps, ours.summary.included_steps) == (steps, max(steps - 2, 0))
    assert [step["excluded"] for step in runs.steps(tmp_path)] == ["first", "counted", None, None][:steps]


def test_the_try_that_fits_into_memory_is_measured(tmp_path):
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


def printed(capsys):
    """The rows on the console, as dictionaries."""
    lines = capsys.readouterr().out.replace("\r", "\n").splitlines()
    return [ast.literal_eval(line) for line in lines if line.startswith("{")]


class Kept(TrainerCallback):
    """A logger."""

    def __init__(self):
        self.rows = []

    def on_log(self, args, state, control, logs=None, **_):
        self.rows.append(perf(logs).keys())


TEN_ROWS = {"max_steps": 30, "logging_steps": 3}


@pytest.mark.parametrize(("disable_tqdm", "console"), [(True, PrinterCallback), (False, ProgressCallback)])
def test_the_console_shows_five_metrics_of_a_row_and_loggers_get_all(tmp_path, capsys, disable_tqdm, console):
    logger, often = Kept(), {"save_strategy": "steps", "save_steps": 30, "disable_tqdm": disable_tqdm}
    _, trainer, output = fit(tmp_path, logger, **TEN_ROWS, **often)
    assert any(isinstance(callback, console) for callback in trainer.callback_handler.callbacks)
    shown = printed(capsys)
    assert [[*perf(row)] for row in shown] == [ROW] * 10 + [ROW_OF_RUN]
    assert [next(iter(row)) for row in shown] == ["loss"] * 10 + ["train_runtime"]
    history = [perf(row).keys() for row in trainer.state.log_history]
    assert logger.rows == history
    assert all(len(keys) > 10 for keys in history)
    assert history[-1] == perf(output.metrics).keys()
    saved = json.loads((tmp_path / "checkpoint-30" / "trainer_state.json").read_text())["log_history"]
    assert [perf(row).keys() for row in saved] == history[: len(saved)]
    assert not [callback for callback in trainer.callback_handler.callbacks if "on_log" in vars(callback)]


@pytest.mark.parametrize(
    ("settings", "row"),
    [
        ({"console": "off"}, lambda _: set()),
        ({"console": "all"}, lambda logged: logged),
        ({"metrics": "main"}, lambda _: {*ROW}),
        ({"metrics": "main", "console": "all"}, lambda _: {*ROW}),
        ({"metrics": "main", "console": "off"}, lambda _: set()),
    ],
)
def test_the_settings_choose_the_metrics_of_console_and_loggers(tmp_path, capsys, settings, row):
    _, trainer, _ = fit(tmp_path, config=PerfConfig(**settings), **TEN_ROWS)
    logged = [{*perf(row)} for row in trainer.state.log_history]
    assert all((keys in ({*ROW}, {*ROW_OF_RUN})) == (settings.get("metrics") == "main") for keys in logged)
    shown = printed(capsys)
    assert [{*perf(line)} for line in shown[:-1]] == [row(keys) for keys in logged[:-1]]
    assert len(perf(shown[-1])) == len(row(logged[-1]))


def test_a_printer_of_the_users_own_shows_five_too(tmp_path, capsys):
    class Mine(PrinterCallback):
        def on_log(self, args, state, control, logs=None, **_):
            logs |= {"mine": 1, "perf/mine": 2}
            print(dict(logs))

    _, trainer, _ = fit(tmp_path, Mine(), **TEN_ROWS)
    mine = [row for row in printed(capsys) if "mine" in row]
    assert {len(perf(row)) for row in mine} == {6}  # with that of the program
    assert all(perf(row) for row in trainer.state.log_history)


def test_the_console_gets_all_metrics_back_after_an_error_in_it(tmp_path):
    class Broken(PrinterCallback):
        def on_log(self, args, state, control, logs=None, **_):
            self.logs = logs
            raise OSError("the terminal is gone")

    broken = Broken()
    with pytest.raises(OSError, match="the terminal is gone"):
        fit(tmp_path, broken, **TEN_ROWS)
    assert len(perf(broken.logs)) > len(ROW)
    assert "on_log" not in vars(broken)


def test_the_table_of_a_notebook_has_the_loss_and_nothing_of_ours(tmp_path, monkeypatch):
    ipython = ModuleType("IPython")
    ipython.display = ModuleType("IPython.display")
    shown = []
    ipython.display.display = lambda *_, **__: type("Handle", (), {"update": lambda _, html: shown.append(html)})()
    ipython.display.HTML = lambda text: text
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    from transformers.utils.notebook import NotebookProgressCallback

    _, trainer, _ = fit(tmp_path, NotebookProgressCallback(), **TEN_ROWS)
    trainer.callback_handler.callbacks.clear()
    assert "Training Loss" in shown[-1]
    assert "perf/" not in "".join(shown)


def test_a_second_fit_of_the_same_trainer_is_a_run_of_its_own(tmp_path):
    ours = PerfCallback()
    trainer = attempt(tmp_path, ours=ours, until=4)
    trainer.train()
    runs = opened(tmp_path)
    assert numbers(tmp_path) == [(1, 0)] * 2
    assert len({run.run_id for run in runs}) == 2
    assert totals(tmp_path) == [(16, 256)] * 2
    assert ours.summary.run_id == runs[1].run_id


@RESUMES
def test_the_same_trainer_resumes_as_another_would(tmp_path):
    ours = PerfCallback()
    trainer = attempt(tmp_path, ours=ours, until=4)
    trainer.remove_callback(Stop)
    trainer.train(resume_from_checkpoint=True)
    assert numbers(tmp_path) == [(1, 0), (2, 4)]
    assert totals(tmp_path) == [(16, 256), (48, 768)]


def state_of(checkpoint):
    """What the trainer saved about itself, without our values and those of the clock."""
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    for line in state["log_history"]:
        for name in [name for name in line if name.startswith("perf/")]:
            del line[name]
    return state


@RESUMES
@pytest.mark.filterwarnings("ignore:mtime may not be reliable")  # transformers 4, of checkpoints made within a second
@pytest.mark.parametrize("restoring", [False, True], ids=["", "callbacks restored"])
def test_a_resumed_run_ends_in_the_state_of_a_run_without_a_stop(tmp_path, restoring):
    arguments, often = {"save_total_limit": 2}, {"steps": 8, "save": 4}
    attempt(tmp_path / "whole", until=8, arguments=arguments, **often)
    attempt(tmp_path / "parts", until=4, arguments=arguments, **often)
    arguments["restore_callback_states_from_checkpoint"] = restoring
    attempt(tmp_path / "parts", until=8, resume=4, arguments=arguments, **often)
    whole, parts = [state_of(tmp_path / name / "checkpoint-8") for name in ("whole", "parts")]
    assert whole == parts
    assert "perf_callbacks" not in parts["stateful_callbacks"]
    assert [run.attempt for run in opened(tmp_path / "parts")] == [1, 2]


def test_a_checkpoint_of_the_model_alone_has_counters(tmp_path):
    attempt(tmp_path, until=4, arguments={"save_only_model": True})
    trainer = attempt(tmp_path, until=6, resume=4, arguments={"save_only_model": True})
    trainer.save_model(str(tmp_path / "model"))
    assert numbers(tmp_path) == [(1, 0), (2, 4)]
    assert not (tmp_path / "model" / "perf_callbacks.json").exists()


KILLED = """
import os, signal, sys
from trainings import models
from perf_callbacks.kernel.records import journal_file
from perf_callbacks.transformers import PerfCallback
from transformers import TrainerCallback

journal_file.SPACING_SECONDS = 0.0  # else it depends on the machine whether the step after the checkpoint is on disk

class Kill(TrainerCallback):
    def on_step_begin(self, args, state, control, **_):
        if state.global_step == 5:
            os.kill(os.getpid(), signal.SIGKILL)

arguments = models.training_arguments(sys.argv[1], max_steps=12, save_strategy="steps", save_steps=2)
models.trainer(arguments, PerfCallback(), Kill(), train_dataset=models.Tokens(40)).train()
"""


@pytest.mark.slow
def test_a_killed_run_goes_on_from_its_checkpoint(tmp_path):
    status, output = python("-c", KILLED, tmp_path)
    assert status == -signal.SIGKILL, output
    attempt(tmp_path, until=8, resume=4)
    assert numbers(tmp_path) == [(1, 0), (2, 4)]
    assert len({run.run_id for run in opened(tmp_path)}) == 1
    assert runs.records(tmp_path, Summary, attempt=0) == []
    assert [step["step"] for step in runs.steps(tmp_path, attempt=0)] == [1, 2, 3, 4, 5], "beyond the checkpoint"
    (summary,) = runs.records(tmp_path, Summary)
    assert (summary.total_samples, summary.total_tokens) == (32, 512)


TWO_RANKS = """
import os, sys
from trainings import models
import torch
from perf_callbacks import PerfConfig
from perf_callbacks.transformers import PerfCallback

for steps in (2, 4):
    arguments = models.training_arguments(sys.argv[1], max_steps=steps, save_strategy="steps", save_steps=2)
    trainer = models.trainer(arguments, PerfCallback(PerfConfig(flops="off")), train_dataset=models.Tokens(40))
    trainer.train(resume_from_checkpoint=steps == 4)
torch.distributed.barrier()
os._exit(0)  # gloo's threads at times abort the interpreter's own way out
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(Trainer, "_run_epoch"),
    reason="transformers 4 can't resume on several CPU ranks: it asks torch for a device called cpu:0",
)
def test_two_ranks_that_resume_have_a_journal_each_and_log_rates_per_device(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TWO_RANKS)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2)
    status, output = python(*launcher, script, tmp_path, ACCELERATE_USE_CPU="true")
    assert status == 0, output
    for rank in range(2):
        (run,) = runs.records(tmp_path, Run, rank=rank)
        assert (run.rank, run.world_size, run.attempt, run.step) == (rank, 2, 2, 2)
        assert [step["samples"] for step in runs.steps(tmp_path, rank=rank)] == [4, 4]
    totals = [runs.records(tmp_path, Summary, rank=rank)[0].total_samples for rank in range(2)]
    assert totals == [16, None], "only rank 0 saves what it counted"
    saved = json.loads((tmp_path / "checkpoint-4" / "trainer_state.json").read_text())
    rates = {key for row in saved["log_history"] for key in row if key.startswith("perf/") and "_per_second" in key}
    assert rates == needing(DEVICES)
