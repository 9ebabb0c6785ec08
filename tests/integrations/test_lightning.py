"""Lightning: rows, amounts, loggers, bars, other callbacks, copies, checkpoints and YAML of real trainers."""

import copy
import functools
import gc
import importlib
import io
import pickle
import weakref
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from metric_keys import MAIN, of_run
from rows import each_row
from trainings import lightning_kit
from trainings.lightning_trainer import LightningTraining
from trainings.runs import numbers, opened, records, steps, totals
from trainings.sleep import SLOW, Sleep

from perf_callbacks import PerfConfig
from perf_callbacks.integrations.lightning import hooks
from perf_callbacks.integrations.lightning.hooks import EVERY_BATCH, journal_directory
from perf_callbacks.kernel.fit.training_objects import TrainingObjects
from perf_callbacks.kernel.records.fit_records import Row, Run

BOTH = pytest.mark.parametrize("of", lightning_kit.FRAMEWORKS)


pytestmark = pytest.mark.filterwarnings(
    "ignore:You're resuming from a checkpoint that ended before the epoch ended",
    "ignore:Checkpoint directory .* exists and is not empty",
    "ignore:Using ModelCheckpoint with manual optimization and every_n_train_steps",
    "ignore:Be aware that when using `ckpt_path`",
    "ignore:No seed found",
    "ignore:train_dataloader yielded None",
)


def attempt(directory, *, until, **options):
    """Train until a step, saving a checkpoint after every second step."""
    return LightningTraining(directory, steps=until, save=2, **options).run().trainer


def fit(directory, module="Automatic", *callbacks, of="lightning", flops="count", **options):
    """A fit with our callback in it, and the trainer."""
    kinds = lightning_kit.tree(of)
    ours = kinds.PerfCallback(PerfConfig(flops=flops))
    loader = options.pop("loader") if "loader" in options else lightning_kit.loader(options.pop("rows", 24))
    trainer = lightning_kit.trainer(directory, ours, *callbacks, of=of, **options)
    trainer.fit(getattr(kinds, module)() if isinstance(module, str) else module, loader)
    return ours, trainer


def rows_and_losses(directory):
    lines = lightning_kit.logged(directory)
    rows = [int(line["step"]) for line in lines if "perf/step_time" in line]
    losses = [int(line["step"]) for line in lines if "loss" in line]
    assert not [line for line in lines if {"perf/step_time", "loss"} <= line.keys()]
    return rows, losses


def messages(caplog):
    """Our own words in the log."""
    return [record.getMessage() for record in caplog.records if record.name == "perf_callbacks"]


CASES = {
    "automatic": ("Automatic", {}, [1, 2, 3, 4, 5]),
    "accumulated": ("Automatic", {"accumulate_grad_batches": 4}, [1, 2, 3, 4, 5]),
    "every second step": ("Automatic", {"log_every_n_steps": 2}, [1, 3, 5]),
    "manual with two optimizers": ("Manual", {"max_steps": 12}, [1, 2, 3, 4, 5]),
    "dataloader_iter": ("Iterating", {}, [1, 2, 3, 4, 5]),
}


@BOTH
@pytest.mark.parametrize("case", CASES)
def test_rows_stand_at_the_step_of_the_loss_in_every_logger(tmp_path, of, case):
    module, options, expected = CASES[case]
    kinds = lightning_kit.tree(of)
    loggers = [kinds.CSVLogger(tmp_path), kinds.TensorBoardLogger(tmp_path)]
    ours, _ = fit(tmp_path, module, of=of, flops="off", logger=loggers, **options)
    rows, losses = rows_and_losses(tmp_path)
    assert rows == expected
    assert losses == [*expected] if 0 not in losses else [0, *expected]
    assert lightning_kit.points(tmp_path, "perf/step_time") == expected
    assert lightning_kit.points(tmp_path, "loss") == losses
    assert ours.summary.steps == ours.summary.step == 6
    assert [row.step for row in records(tmp_path, Row)] == [*[number + 1 for number in expected], 6]
    assert lightning_kit.points(tmp_path, "perf/run/step_time") == [5]
    assert [line["step"] for line in lightning_kit.logged(tmp_path) if "perf/run/step_time" in line] == [5]


@pytest.mark.parametrize("module", ["Automatic", "Manual"])
def test_a_skipped_batch_is_no_step_and_in_no_count(tmp_path, module):
    kind = getattr(lightning_kit.tree(), module)
    # Batches 1, 2 | 4, 5, 6 | 8 to 13 are trained on, the others end their epoch.
    options = {"logger": lightning_kit.tree().CSVLogger(tmp_path), "max_steps": -1, "max_epochs": 3}
    ours, trainer = fit(tmp_path, kind(skip=(3, 7)), flops="off", **options)
    rows, losses = rows_and_losses(tmp_path)
    assert losses == list(range(11))
    assert rows == list(range(1, 11))
    assert (ours.summary.steps, ours.summary.samples) == (11, 44)
    assert [step["step"] for step in steps(tmp_path)] == list(range(1, 12))
    assert trainer.fit_loop.epoch_loop._batches_that_stepped == 11


def without_the_third(rows):
    return None if rows[0].equal(lightning_kit.Numbers()[8]) else torch.stack(rows)


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(lightning_kit.Numbers(10)[index] for index in range(10))


class Streaming(lightning_kit.tree().Automatic):
    def train_dataloader(self):
        return torch.utils.data.DataLoader(Stream(), batch_size=4)


class Repeating(lightning_kit.tree().Automatic):
    """Its closure runs many times."""

    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters(), max_iter=4)


Skipping = functools.partial(lightning_kit.tree().Automatic, skip=(4,))
ONCE, TWICE = {"max_steps": -1, "max_epochs": 1}, {"max_steps": -1, "max_epochs": 2}
AMOUNTS = {
    "manual": ("Manual", TWICE | {"rows": 10}, [4, 4, 2] * 2),
    "dataloader_iter": ("Iterating", TWICE | {"rows": 10}, [4, 4, 2] * 2),
    "many closures": (Repeating, {}, [4] * 6),
    # 1, 2 | 3 and then the epoch is over | 5, 6 | 7, 8 | 9, 10
    "skipped": (Skipping, {"accumulate_grad_batches": 2, "max_steps": 4}, [8, 12, 8, 8]),
    "a batch that is None": (
        "Automatic",
        ONCE | {"loader": lightning_kit.loader(collate_fn=without_the_third)},
        [4] * 5,
    ),
    "repeated on purpose": ("Automatic", {"overfit_batches": 2}, [4] * 6),
    "no length, made anew": (
        Streaming,
        TWICE | {"reload_dataloaders_every_n_epochs": 1, "loader": None},
        [4, 4, 2] * 2,
    ),
    "one batch": ("Automatic", {"fast_dev_run": True}, [4]),
}


@pytest.mark.parametrize(("module", "options", "samples"), AMOUNTS.values(), ids=AMOUNTS)
def test_samples_of_each_step_are_exact(tmp_path, module, options, samples):
    ours, _ = fit(tmp_path, module if isinstance(module, str) else module(), **options)
    assert [step["samples"] for step in steps(tmp_path)] == samples
    assert (ours.summary.steps, ours.summary.samples, ours.summary.tokens) == (len(samples), sum(samples), None)


@BOTH
@pytest.mark.parametrize("bar", ["TQDMProgressBar", "RichProgressBar"])
def test_a_progress_bar_shows_step_time_and_mfu_in_three_figures(tmp_path, monkeypatch, capsys, of, bar):
    if bar == "RichProgressBar":
        pytest.importorskip("rich")
    monkeypatch.setenv("COLUMNS", "1000")
    logger = lightning_kit.tree(of).CSVLogger(tmp_path)
    bars = getattr(lightning_kit.tree(of).callbacks, bar)()
    _, trainer = fit(tmp_path, "Automatic", bars, of=of, logger=logger, enable_progress_bar=True)
    shown = {name: value for name, value in trainer.progress_bar_metrics.items() if name.startswith("perf/")}
    assert shown.keys() == {"perf/step_time", "perf/mfu"}
    output = capsys.readouterr().out
    for name, value in shown.items():
        figures = f"{float(value):.3g}"
        assert f"{value:.3f}" == str(value) == figures  # rich asks for .3f
        shown_as = figures.replace("e-0", "e-") if bar == "TQDMProgressBar" else figures
        assert f"{name}{'=' if bar == 'TQDMProgressBar' else ': '}{shown_as}" in output
    assert rows_and_losses(tmp_path)[0] == [2, 3, 4, 5]


@pytest.mark.parametrize("console", ["off", "all"])
def test_a_progress_bar_shows_nothing_or_all_of_a_row_if_asked(tmp_path, monkeypatch, console):
    monkeypatch.setenv("PERF_CALLBACKS_CONSOLE", console)
    _, trainer = fit(tmp_path, logger=lightning_kit.tree().CSVLogger(tmp_path))
    shown = {name for name in trainer.progress_bar_metrics if name.startswith("perf/")}
    rows = [{name for name in line if name.startswith("perf/")} for line in lightning_kit.logged(tmp_path)]
    row = next(row for row in reversed(rows) if "perf/step_time" in row)
    assert shown == (row if console == "all" else set())


def test_the_loggers_get_the_main_metrics_alone_if_asked(tmp_path, monkeypatch):
    monkeypatch.setenv("PERF_CALLBACKS_METRICS", "main")
    fit(tmp_path, logger=lightning_kit.tree().CSVLogger(tmp_path))
    keys = {key for line in lightning_kit.logged(tmp_path) for key in line if key.startswith("perf/")}
    five = [key for key in MAIN if key != "perf/tokens_per_second"]
    assert keys == {*five, *of_run(five)}


@pytest.mark.parametrize("call", ["validate", "test", "predict"])
def test_without_a_fit_nothing_happens(tmp_path, call, capsys):
    class Module(lightning_kit.tree().Automatic):
        def test_step(self, batch):
            return None

        def predict_step(self, batch):
            return self.net(batch)

    ours = lightning_kit.tree().PerfCallback()
    trainer = lightning_kit.trainer(tmp_path, ours)
    getattr(trainer, call)(Module(), lightning_kit.loader())
    assert ours.summary is None
    assert not (tmp_path / "perf_callbacks").exists()
    assert "perf_callbacks" not in capsys.readouterr().out


def test_a_fit_that_has_nothing_to_do_leaves_nothing(tmp_path):
    ours, _ = fit(tmp_path, limit_train_batches=0)
    assert ours.summary is None


def test_of_two_callbacks_only_the_first_measures(tmp_path, caplog):
    second = lightning_kit.tree().PerfCallback()
    first, _ = fit(tmp_path, "Automatic", second)
    assert (first.summary.steps, second.summary) == (6, None)
    assert len(records(tmp_path, Run)) == 1
    assert messages(caplog) == ["perf_callbacks: another PerfCallback measures this trainer, this one does nothing."]


@BOTH
def test_the_callback_can_be_pickled_before_and_during_a_fit(tmp_path, of):
    kinds, copies = lightning_kit.tree(of), []

    class Sending(kinds.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            copies.append(pickle.loads(pickle.dumps(trainer.callbacks[0])))
            copies.append(copy.deepcopy(trainer.callbacks[0]))
            torch.save(pl_module.state_dict(), io.BytesIO())

    copies.append(pickle.loads(pickle.dumps(kinds.PerfCallback(PerfConfig(gc_interval=11)))))
    fit(tmp_path, "Automatic", Sending(), of=of, max_steps=2)
    assert {type(callback) for callback in copies} == {kinds.PerfCallback}
    assert [callback.summary for callback in copies] == [None] * 5
    for callback in copies[:2]:
        lightning_kit.trainer(tmp_path, callback, of=of).fit(kinds.Automatic(), lightning_kit.loader())
        assert callback.summary.steps == 6
    assert records(tmp_path, Run, attempt=-2)[0].config["gc_interval"] == 11


def test_an_upload_by_a_logger_is_part_of_the_checkpoint(tmp_path, clock):
    kinds = lightning_kit.tree()

    class Uploads(kinds.CSVLogger):
        def after_save_checkpoint(self, _checkpoint):
            clock.sleep(8.0)

    saving = kinds.callbacks.ModelCheckpoint(dirpath=tmp_path / "saved", every_n_train_steps=2, save_top_k=-1)
    logger = Uploads(tmp_path)
    ours, _ = fit(tmp_path, "Automatic", saving, logger=logger, enable_checkpointing=True)
    assert [step["step_time"] for step in steps(tmp_path)] == [0.0] * 6
    assert (ours.summary.span_seconds["checkpoint"], ours.summary.span_counts["checkpoint"]) == (24.0, 3)
    assert "after_save_checkpoint" not in vars(logger)


def test_a_logger_that_fails_for_us_costs_the_measuring_and_not_the_run(tmp_path, caplog):
    class Choosy(lightning_kit.tree().CSVLogger):
        def log_metrics(self, metrics, step=None):
            if "perf/step_time" in metrics:
                raise StopIteration
            super().log_metrics(metrics, step)

    ours, trainer = fit(tmp_path, logger=Choosy(tmp_path))
    assert trainer.global_step == 6
    assert ours.summary.failure == "StopIteration"
    assert messages(caplog) == ["perf_callbacks stopped measuring, training goes on: StopIteration."]


def test_the_journal_lies_where_the_logger_writes(tmp_path):
    fit(tmp_path / "root", logger=lightning_kit.tree().CSVLogger(tmp_path, "a"), rows=8, flops="off", max_steps=2)
    assert [*tmp_path.rglob("*.jsonl")] == [tmp_path / "a" / "version_0" / "perf_callbacks" / "rank0.jsonl"]


class Refusing:
    save_dir = None

    @property
    def log_dir(self):
        raise RuntimeError("no")


LOGGERS = [
    ([SimpleNamespace(log_dir="logs", save_dir="saved")], "logs"),
    ([SimpleNamespace(log_dir="first"), SimpleNamespace(log_dir="second")], "first"),
    ([SimpleNamespace(save_dir="saved")], "saved"),
    ([SimpleNamespace(save_dir="s3://bucket/saved")], "root"),
    ([Refusing()], "root"),
    ([Refusing(), SimpleNamespace(log_dir="second")], "second"),
    ([], "root"),
]


@each_row("loggers directory", LOGGERS)
def test_the_journal_lies_in_the_first_local_directory_of_a_logger(loggers, directory):
    trainer = SimpleNamespace(loggers=loggers, global_rank=0, default_root_dir="root")
    assert journal_directory(trainer) == Path(directory)


def test_other_ranks_ask_no_logger():
    """On these a version may differ, and to ask the trainer would be a collective call."""
    assert journal_directory(SimpleNamespace(global_rank=1, default_root_dir="root")) == Path("root")


def test_rows_are_logged_where_another_callback_saves_before_our_turn(tmp_path):
    class Saving(lightning_kit.tree().Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if trainer.global_step % 2 == 0:
                trainer.save_checkpoint(tmp_path / "checkpoint.ckpt")

    logged = {}
    for order in ("before", "after"):
        kinds, directory = lightning_kit.tree(), tmp_path / order
        callbacks = [kinds.PerfCallback(), Saving()][:: -1 if order == "before" else 1]
        lightning_kit.trainer(directory, *callbacks, log_every_n_steps=2).fit(
            kinds.Automatic(), lightning_kit.loader(24)
        )
        logged[order] = [row.step for row in records(directory, Row)]
    assert logged["before"] == logged["after"] != []


@BOTH
def test_hooks_that_have_nothing_to_do_are_not_called_for_every_batch(tmp_path, of):
    ours, trainer = fit(tmp_path, of=of, profiler="simple")
    called = {action.rpartition(".")[2] for action in trainer.profiler.recorded_durations if "PerfCallback" in action}
    assert "on_train_start" in called
    assert not called & {*EVERY_BATCH}
    assert not vars(ours).keys() & {*EVERY_BATCH}


@BOTH
def test_steps_end_in_a_hook_where_the_connector_has_no_method_for_it(tmp_path, monkeypatch, of):
    monkeypatch.setattr("perf_callbacks.integrations.lightning.watch.BATCH_END", "on_batch_end_in_another_version")
    ours, _ = fit(tmp_path, of=of, flops="off", logger=lightning_kit.tree(of).CSVLogger(tmp_path))
    assert rows_and_losses(tmp_path)[0] == [1, 2, 3, 4, 5]
    assert [step["samples"] for step in steps(tmp_path)] == [4] * ours.summary.steps == [4] * 6
    assert "on_train_batch_end" not in vars(ours)


@pytest.mark.parametrize("hook", EVERY_BATCH)
def test_hooks_that_a_subclass_has_something_to_do_in_are_called(tmp_path, hook):
    called = []

    def body(self, *args):
        called.append(hook)
        getattr(super(kind, self), hook)(*args)

    kind = type("Mine", (lightning_kit.tree().PerfCallback,), {hook: body})
    trainer = lightning_kit.trainer(tmp_path, kind())
    trainer.fit(lightning_kit.tree().Automatic(), lightning_kit.loader(24))
    assert called == [hook] * 6


@pytest.mark.parametrize(("every", "between"), [(0, None), (3, 3)])
def test_a_trainer_that_never_logs_has_no_steps_between_log_lines(tmp_path, monkeypatch, every, between):
    seen = []
    monkeypatch.setattr(
        hooks, "TrainingObjects", lambda **facts: seen.append(facts["log_every"]) or TrainingObjects(**facts)
    )
    ours, _ = fit(tmp_path, log_every_n_steps=every)
    assert {*seen} == {between}
    assert ours.summary.failure is None


class Slow(lightning_kit.Numbers, torch.utils.data.IterableDataset):
    __len__ = None

    def __iter__(self):
        self.sleep()
        return iter([self[index] for index in range(self.rows)])


@pytest.mark.parametrize("made", ["once", "in each epoch"])
def test_the_wait_for_an_iterator_is_data(tmp_path, clock, made):
    sleep = Sleep(clock.sleep, SLOW if made == "once" else (3, 5, 7))
    training = LightningTraining(tmp_path, steps=7, accumulate=2, flops="off")
    sleep.training = training
    if made == "once":
        LightningTraining.PLACES["the dataset"].install(training, sleep)
        batches = training.loader
        training.loader = type("Iterable", (), {"__iter__": lambda _: iter(batches)})()  # no loader, and no length
    else:
        rows = Slow(16)
        rows.sleep, training.loader = sleep, torch.utils.data.DataLoader(rows, batch_size=4)
    training.run()
    done = steps(tmp_path)
    assert sleep.slept.keys() == {*sleep.steps}  # Lightning fetches a batch ahead: the step before waits for its rows
    assert {step["step"] for step in done if step["data_time"]} == {*sleep.steps}
    for name in ("data_time", "step_time"):
        assert sum(step[name] for step in done) == pytest.approx(sum(sleep.slept.values()))


@pytest.mark.parametrize("fails", [False, True])
def test_the_step_of_the_module_gets_the_closure_of_lightning(tmp_path, fails):
    from lightning.pytorch.loops.optimization.automatic import Closure

    seen = []

    class Module(lightning_kit.tree().Automatic):
        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
            seen.append((optimizer_closure, type(optimizer_closure)))
            optimizer.step(closure=optimizer_closure)
            if fails and batch_idx == 5:
                raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no") if fails else nullcontext():
        fit(tmp_path, Module())
    assert [kind for _, kind in seen] == [Closure] * 6
    assert not any("closure" in vars(closure) for closure, _ in seen)
    assert all(step["forward_time"] > 0 for step in steps(tmp_path))


def test_loggers_get_metrics_by_name(tmp_path):
    logger = lightning_kit.tree().CSVLogger(tmp_path)
    rows, inner = [], logger.log_metrics
    logger.log_metrics = lambda **named: (rows.append(named), inner(**named))
    fit(tmp_path, logger=logger)
    assert any("perf/step_time" in row["metrics"] for row in rows)
    assert {*map(frozenset, rows)} == {frozenset({"metrics", "step"})}


@pytest.mark.parametrize("hook", [None, "on_train_start", "on_train_batch_end"])
def test_the_list_of_callbacks_is_as_before_after_a_fit(tmp_path, hook):
    kinds = lightning_kit.tree()

    def fail(*_):
        raise RuntimeError(hook)

    other = type("Failing", (kinds.Callback,), {hook: fail} if hook else {})()
    trainer = lightning_kit.trainer(tmp_path, kinds.PerfCallback(), other)
    callbacks = trainer.callbacks
    before = [*callbacks]
    with pytest.raises(RuntimeError, match=hook) if hook else nullcontext():
        trainer.fit(kinds.Automatic(), lightning_kit.loader())
    assert trainer.callbacks is callbacks
    assert callbacks == before


def test_copies_made_within_a_fit_work(tmp_path):
    class Copying(lightning_kit.tree().Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if batch_idx == 3:
                plugin, (optimizer,) = trainer.strategy.precision_plugin, trainer.optimizers
                self.module, self.trainer = copy.deepcopy(pl_module), copy.deepcopy(trainer)
                self.optimizers = [copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))]
                self.loader, self.plugin = copy.copy(trainer.train_dataloader), pickle.loads(pickle.dumps(plugin))

    copies = Copying()
    ours, trainer = fit(tmp_path, "Automatic", copies)
    copies.module.net(torch.ones(1, 4))
    for optimizer in copies.optimizers:
        optimizer.zero_grad()
        optimizer.step()
    assert len([*copies.loader]) == 6
    assert type(copies.plugin) is type(trainer.strategy.precision_plugin)
    assert type(copies.trainer.callbacks) is list
    assert ours.summary.steps == 6


@BOTH
def test_a_trainer_and_its_module_are_freed_though_the_callback_is_kept(tmp_path, of):
    def references():
        module = lightning_kit.tree(of).Automatic()
        ours, trainer = fit(tmp_path, module, of=of)
        return ours, [weakref.ref(thing) for thing in (trainer, module, module.net, trainer.optimizers[0])]

    ours, gone = references()
    del ours.log, ours.log_dict  # the trainer puts the module's own on every callback
    gc.collect()
    assert [reference() for reference in gone] == [None] * 4
    assert ours.summary.steps == 6


def test_rows_of_a_resumed_run_stand_at_the_step_of_the_loss(tmp_path):
    kinds, config = lightning_kit.tree(), PerfConfig(flops="off")
    attempt(tmp_path, ours=kinds.PerfCallback(config), until=4, accumulate=2)
    logging = {"logger": kinds.CSVLogger(tmp_path / "resumed")}
    attempt(tmp_path, ours=kinds.PerfCallback(config), until=8, resume=4, accumulate=2, trainer=logging)
    rows, losses = rows_and_losses(tmp_path)
    assert losses == [*range(losses[0], losses[0] + 4)]  # from 4 on, or from 3 with Lightning 2.4
    assert rows == losses[1::2]  # a checkpoint fell in the other ones


def test_a_checkpoint_holds_plain_values_under_a_key_of_its_own(tmp_path):
    ours = lightning_kit.tree().PerfCallback()
    attempt(tmp_path, callbacks=[lightning_kit.tree().PerfCallback()], ours=ours, until=2)
    checkpoint = torch.load(tmp_path / "checkpoint-2.ckpt", weights_only=True)
    ours_saved = checkpoint["perf_callbacks"]
    times = {"started_unix", "first_unix", "elapsed_seconds", "productive_seconds"}
    assert all(type(ours_saved.pop(name)) is float for name in times)
    assert ours_saved == {
        "run_id": ours.summary.run_id,
        "attempt": 1,
        "rank": 0,
        "step": 2,
        "samples": 8,
        "tokens": None,
    }
    assert not [key for key in checkpoint["callbacks"] if "Perf" in key]


def test_a_checkpoint_loaded_to_validate_it_changes_nothing(tmp_path):
    ours = lightning_kit.tree().PerfCallback()
    trainer = attempt(tmp_path, ours=ours, until=4)
    weights, before = tmp_path / "weights.ckpt", ours.summary
    trainer.save_checkpoint(weights, weights_only=True)
    assert "perf_callbacks" not in torch.load(weights, weights_only=True)
    for path in (tmp_path / "checkpoint-2.ckpt", weights):
        trainer.validate(ckpt_path=path, dataloaders=lightning_kit.loader(), verbose=False)
        assert ours.summary == before


@BOTH
def test_a_second_fit_of_the_same_trainer_goes_on(tmp_path, of):
    kinds = lightning_kit.tree(of)
    ours, module = kinds.PerfCallback(), kinds.Automatic()
    trainer = lightning_kit.trainer(tmp_path, ours, of=of, max_steps=4)
    trainer.fit(module, lightning_kit.loader())
    trainer.fit_loop.epoch_loop.max_steps = 6
    trainer.fit(module, lightning_kit.loader())
    assert numbers(tmp_path) == [(1, 0), (2, 4)]
    assert len({run.run_id for run in opened(tmp_path)}) == 1
    assert totals(tmp_path) == [(16, None), (24, None)]


def test_the_same_callback_in_another_trainer_begins_anew(tmp_path):
    ours = lightning_kit.tree().PerfCallback()
    attempt(tmp_path, ours=ours, until=4)
    attempt(tmp_path, ours=ours, until=4)
    assert numbers(tmp_path) == [(1, 0), (1, 0)]
    assert len({run.run_id for run in opened(tmp_path)}) == 2
    assert totals(tmp_path) == [(16, None), (16, None)]


@pytest.mark.parametrize("finder", ["BatchSizeFinder", "LearningRateFinder"])
def test_the_trials_of_a_tuner_do_not_count(tmp_path, finder):
    class Module(lightning_kit.tree().Automatic):
        def __init__(self):
            super().__init__()
            self.batch_size, self.lr = 4, 0.1

        def train_dataloader(self):
            return lightning_kit.loader(40, self.batch_size)

        def val_dataloader(self):
            return lightning_kit.loader(4)

    options = {"max_trials": 1, "steps_per_trial": 2} if finder == "BatchSizeFinder" else {"num_training_steps": 3}
    ours = lightning_kit.tree().PerfCallback()
    trainer = lightning_kit.trainer(tmp_path, getattr(lightning_kit.tree().callbacks, finder)(**options), ours)
    module = Module()
    trainer.fit(module)
    assert [step["step"] for step in steps(tmp_path)] == [1, 2, 3, 4, 5, 6]
    assert numbers(tmp_path) == [(1, 0)]
    assert totals(tmp_path) == [(6 * module.batch_size, None)]


def test_a_checkpoint_before_the_first_step_has_the_loaded_counters(tmp_path):
    class Trying(lightning_kit.tree().Callback):
        def on_fit_start(self, trainer, pl_module):
            trainer.save_checkpoint(tmp_path / "trial.ckpt")

    attempt(tmp_path, until=4)
    attempt(tmp_path, callbacks=[Trying()], until=8, resume=4)
    paths = tmp_path / "checkpoint-4.ckpt", tmp_path / "trial.ckpt"
    loaded, tried = [torch.load(path, weights_only=True) for path in paths]
    assert tried["perf_callbacks"] == loaded["perf_callbacks"]


YAML = """
trainer:
  max_steps: 3
  accelerator: cpu
  devices: 1
  logger: false
  enable_progress_bar: false
  enable_checkpointing: false
  enable_model_summary: false
  default_root_dir: {root}
  callbacks:
    - class_path: perf_callbacks.{framework}.PerfCallback
      init_args:
        config: {config}
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A fit as from a command line, with the configuration of our callback in YAML."""
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")  # of what Lightning calls
    monkeypatch.setattr("sys.argv", ["train.py"])

    def run(config, of="lightning"):
        kinds, file = lightning_kit.tree(of), tmp_path / "config.yaml"
        data = type("Data", (kinds.pl.LightningDataModule,), {"train_dataloader": lambda _: lightning_kit.loader()})
        file.write_text(YAML.format(root=tmp_path, framework=of, config=config))
        cli = importlib.import_module(f"{lightning_kit.FRAMEWORKS[of]}.cli").LightningCLI
        return cli(kinds.Automatic, data, args=["fit", "--config", str(file)], save_config_callback=None)

    return run


@BOTH
def test_a_fit_is_configured_from_yaml(tmp_path, run, of):
    assert run("null", of).trainer.global_step == 3
    assert run("{gc_interval: 11, gc: observe, peak_tflops: bf16=989.5}", of).trainer.global_step == 3
    (opened,) = records(tmp_path, Run)
    assert (opened.config["gc_interval"], opened.config["gc"]) == (11, "observe")


@pytest.mark.parametrize("config", ["{gc_intervall: 11}", "{gc: sometimes}"])
def test_a_mistake_in_the_yaml_is_refused(tmp_path, run, capsys, config):
    with pytest.raises(SystemExit) as stopped:
        run(config)
    assert stopped.value.code == 2
    assert config.strip("{}").partition(":")[0] in capsys.readouterr().err
    assert not (tmp_path / "perf_callbacks").exists()
