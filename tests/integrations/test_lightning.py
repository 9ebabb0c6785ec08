"""What a Lightning trainer logs of us, and what it is that we count: with real trainers, of both import trees."""

import copy
import io
import pickle
from types import SimpleNamespace

import pytest
import torch
from metric_keys import MAIN, of_run
from trainings import lightning_kit
from trainings.runs import records, steps

from perf_callbacks import PerfConfig
from perf_callbacks.integrations.lightning import hooks
from perf_callbacks.integrations.lightning.hooks import EVERY_BATCH, _directory
from perf_callbacks.kernel.fit.setup import Setup
from perf_callbacks.kernel.records.fit_records import Row, Run, Summary

BOTH = pytest.mark.parametrize("of", lightning_kit.FRAMEWORKS)


def fit(
    directory,
    module="Automatic",
    *callbacks,
    of="lightning",
    rows=24,
    val=None,
    ckpt_path=None,
    flops="count",
    **options,
):
    """A fit with our callback in it, and what came of it."""
    kinds = lightning_kit.tree(of)
    ours = kinds.PerfCallback(PerfConfig(flops=flops))
    trainer = lightning_kit.trainer(directory, ours, *callbacks, of=of, **options)
    module = getattr(kinds, module)() if isinstance(module, str) else module
    trainer.fit(module, lightning_kit.loader(rows), val, ckpt_path=ckpt_path)
    return ours, trainer


def rows_and_losses(directory):
    lines = lightning_kit.logged(directory)
    rows = [int(line["step"]) for line in lines if "perf/step_time" in line]
    losses = [int(line["step"]) for line in lines if "loss" in line]
    assert not [line for line in lines if {"perf/step_time", "loss"} <= line.keys()]
    return rows, losses


def said(caplog):
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


def test_batches_accumulated_before_a_skipped_one_go_into_the_next_step(tmp_path):
    module = lightning_kit.tree().Automatic(skip=(4,))  # 1, 2 | 3 and then the epoch is over | 5, 6 | 7, 8 | 9, 10
    fit(tmp_path, module, accumulate_grad_batches=2, max_steps=4)
    assert [step["samples"] for step in steps(tmp_path)] == [8, 12, 8, 8]


@pytest.mark.filterwarnings("ignore:train_dataloader yielded None")
def test_a_batch_that_is_none_is_no_step(tmp_path):
    def collate(rows):
        return None if rows[0].equal(lightning_kit.Numbers()[8]) else torch.stack(rows)

    ours = lightning_kit.tree().PerfCallback()
    trainer = lightning_kit.trainer(tmp_path, ours, max_steps=-1, max_epochs=1)
    trainer.fit(lightning_kit.tree().Automatic(), lightning_kit.loader(collate_fn=collate))
    assert [(step["step"], step["samples"]) for step in steps(tmp_path)] == [(number, 4) for number in range(1, 6)]


@BOTH
@pytest.mark.parametrize("module", ["Automatic", "Manual", "Iterating"])
def test_samples_are_exact_with_a_ragged_last_batch(tmp_path, of, module):
    ours, _ = fit(tmp_path, module, of=of, rows=10, max_steps=-1, max_epochs=2)
    assert [step["samples"] for step in steps(tmp_path)] == [4, 4, 2] * 2
    assert (ours.summary.samples, ours.summary.tokens) == (20, None)


def test_a_batch_counts_once_if_its_closure_runs_many_times(tmp_path):
    module = lightning_kit.tree().Automatic()
    module.configure_optimizers = lambda: torch.optim.LBFGS(module.parameters(), max_iter=4)
    fit(tmp_path, module)
    assert [step["samples"] for step in steps(tmp_path)] == [4] * 6


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


@BOTH
@pytest.mark.parametrize("console", ["off", "all"])
def test_a_progress_bar_shows_nothing_or_all_of_a_row_if_asked(tmp_path, monkeypatch, of, console):
    monkeypatch.setenv("PERF_CALLBACKS_CONSOLE", console)
    _, trainer = fit(tmp_path, of=of, logger=lightning_kit.tree(of).CSVLogger(tmp_path))
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


@pytest.mark.parametrize("what", ["validate", "test", "predict"])
def test_without_a_fit_nothing_happens(tmp_path, what, capsys):
    class Module(lightning_kit.tree().Automatic):
        def test_step(self, batch):
            return None

        def predict_step(self, batch):
            return self.net(batch)

    ours = lightning_kit.tree().PerfCallback()
    trainer = lightning_kit.trainer(tmp_path, ours)
    getattr(trainer, what)(Module(), lightning_kit.loader())
    assert ours.summary is None
    assert not (tmp_path / "perf_callbacks").exists()
    assert "perf_callbacks" not in capsys.readouterr().out


def test_a_fit_of_one_batch_says_so(tmp_path):
    ours, _ = fit(tmp_path, fast_dev_run=True)
    assert (ours.summary.steps, ours.summary.included_steps) == (1, 0)


def test_a_fit_that_has_nothing_to_do_leaves_nothing(tmp_path):
    ours, _ = fit(tmp_path, limit_train_batches=0)
    assert ours.summary is None


def test_batches_that_are_repeated_on_purpose_count_each_time(tmp_path):
    fit(tmp_path, overfit_batches=2, max_steps=6)
    assert [step["samples"] for step in steps(tmp_path)] == [4] * 6


def test_loaders_that_are_made_anew_and_have_no_length(tmp_path):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(lightning_kit.Numbers(10)[index] for index in range(10))

    ours = lightning_kit.tree().PerfCallback()
    trainer = lightning_kit.trainer(tmp_path, ours, max_steps=-1, max_epochs=2, reload_dataloaders_every_n_epochs=1)
    module = lightning_kit.tree().Automatic()
    module.train_dataloader = lambda: torch.utils.data.DataLoader(Stream(), batch_size=4)
    trainer.fit(module)
    assert [step["samples"] for step in steps(tmp_path)] == [4, 4, 2] * 2


def test_of_two_callbacks_only_the_first_measures(tmp_path, caplog):
    second = lightning_kit.tree().PerfCallback()
    first, _ = fit(tmp_path, "Automatic", second)
    assert (first.summary.steps, second.summary) == (6, None)
    assert len(records(tmp_path, Run)) == 1
    assert said(caplog) == ["perf_callbacks: another PerfCallback measures this trainer, this one does nothing."]


def test_a_trainer_within_a_fit_is_measured_by_its_own_callback(tmp_path):
    kinds = lightning_kit.tree()

    class Within(kinds.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if trainer.global_step == 3:
                self.inner, _ = fit(tmp_path / "inner", max_steps=2)

    within = Within()
    ours, _ = fit(tmp_path / "outer", "Automatic", within)
    assert (ours.summary.steps, within.inner.summary.steps) == (6, 2)
    assert [step["samples"] for step in steps(tmp_path / "outer")] == [4] * 6


def test_a_callback_that_joins_late_is_not_left_out_of_the_start(tmp_path):
    kinds, seen = lightning_kit.tree(), []

    class Late(kinds.Callback):
        def on_train_start(self, trainer, pl_module):
            seen.append("start")

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            seen.append(batch_idx)

    class Inviting(kinds.Callback):
        def on_train_start(self, trainer, pl_module):
            trainer.callbacks.append(Late())

    _, trainer = fit(tmp_path, "Automatic", Inviting(), max_steps=2)
    assert seen == ["start", 0, 1]
    assert [type(callback).__name__ for callback in trainer.callbacks] == ["PerfCallback", "Inviting", "Late"]
    assert type(trainer.callbacks) is list


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
    assert {type(one) for one in copies} == {kinds.PerfCallback}
    assert copies[0]._session.settings.config.gc_interval == 11
    assert [one.summary for one in copies] == [None] * 5
    lightning_kit.trainer(tmp_path, copies[1], of=of).fit(kinds.Automatic(), lightning_kit.loader())
    assert copies[1].summary.steps == 6


@BOTH
def test_an_upload_by_a_logger_is_part_of_the_checkpoint(tmp_path, clock, of):
    kinds = lightning_kit.tree(of)

    class Uploads(kinds.CSVLogger):
        def after_save_checkpoint(self, _checkpoint):
            clock.sleep(8.0)

    saving = kinds.callbacks.ModelCheckpoint(dirpath=tmp_path / "saved", every_n_train_steps=2, save_top_k=-1)
    logger = Uploads(tmp_path)
    ours, _ = fit(tmp_path, "Automatic", saving, of=of, logger=logger, enable_checkpointing=True)
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
    assert said(caplog) == ["perf_callbacks stopped measuring, training goes on: StopIteration."]


def of_its_own(**properties):
    """A logger that writes nothing, and says where that would be."""

    def make(_kinds, _directory):
        from lightning.pytorch.loggers.logger import DummyLogger

        return type("Own", (DummyLogger,), {name: property(answer) for name, answer in properties.items()})()

    return make


def refuse(_logger):
    raise RuntimeError("no")


LOGGERS = {
    "CSV": (lambda kinds, directory: kinds.CSVLogger(directory / "csv"), "csv/lightning_logs/version_0"),
    "TensorBoard": (lambda kinds, directory: kinds.TensorBoardLogger(directory / "tb", "name"), "tb/name/version_0"),
    "the first of two": (
        lambda kinds, directory: [kinds.CSVLogger(directory / "csv", "a"), kinds.TensorBoardLogger(directory / "tb")],
        "csv/a/version_0",
    ),
    "with a save_dir": (of_its_own(save_dir=lambda logger: "saved"), "saved"),
    "elsewhere in the network": (of_its_own(save_dir=lambda logger: "s3://bucket/saved"), "root"),
    "that does not say": (of_its_own(log_dir=refuse, save_dir=lambda logger: None), "root"),
    "none": (lambda kinds, directory: False, "root"),
}


@pytest.mark.parametrize("case", LOGGERS)
def test_the_journal_lies_where_the_logger_writes(tmp_path, monkeypatch, case):
    make, where = LOGGERS[case]
    monkeypatch.chdir(tmp_path)
    fit(tmp_path / "root", logger=make(lightning_kit.tree(), tmp_path), rows=8, flops="off", max_steps=2)
    assert list(tmp_path.rglob("*.jsonl")) == [tmp_path / where / "perf_callbacks" / "rank0.jsonl"]


def test_only_rank_0_asks_its_loggers(tmp_path):
    """On the others a version may differ, and to ask the trainer would be a collective call."""

    class Asked:
        default_root_dir = tmp_path

        def __init__(self, rank):
            self.global_rank = rank

        @property
        def loggers(self):
            return [SimpleNamespace(save_dir=tmp_path / "saved")]

    assert [_directory(Asked(rank)) for rank in (0, 1)] == [tmp_path / "saved", tmp_path]


def test_the_summary_grows_during_the_run(tmp_path):
    seen = []

    class Asking(lightning_kit.tree().Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            seen.append(trainer.callbacks[0].summary.steps)

    ours, _ = fit(tmp_path, "Automatic", Asking())
    assert [*seen, ours.summary.steps] == [0, 1, 2, 3, 4, 5, 6]
    assert records(tmp_path, Summary) == [ours.summary]


def test_rows_are_logged_where_another_callback_saves_before_our_turn(tmp_path):
    class Saving(lightning_kit.tree().Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if trainer.global_step % 2 == 0:
                trainer.save_checkpoint(tmp_path / "checkpoint.ckpt")

    steps = {}
    for order in ("before", "after"):
        kinds, directory = lightning_kit.tree(), tmp_path / order
        callbacks = [kinds.PerfCallback(), Saving()][:: -1 if order == "before" else 1]
        lightning_kit.trainer(directory, *callbacks, log_every_n_steps=2).fit(
            kinds.Automatic(), lightning_kit.loader(24)
        )
        steps[order] = [row.step for row in records(directory, Row)]
    assert steps["before"] == steps["after"] != []


@BOTH
def test_hooks_that_have_nothing_to_do_are_not_called_for_every_batch(tmp_path, of):
    ours, trainer = fit(tmp_path, of=of, profiler="simple")
    called = {action.rpartition(".")[2] for action in trainer.profiler.recorded_durations if "PerfCallback" in action}
    assert "on_train_start" in called
    assert not called & {*EVERY_BATCH}
    assert not vars(ours).keys() & {*EVERY_BATCH}


@pytest.mark.parametrize("module", ["Automatic", "Iterating"])
@BOTH
def test_steps_end_in_a_hook_where_the_connector_has_no_method_for_it(tmp_path, monkeypatch, of, module):
    monkeypatch.setattr("perf_callbacks.integrations.lightning.watch.BATCH_END", "on_batch_end_in_another_version")
    ours, _ = fit(tmp_path, module, of=of, flops="off", logger=lightning_kit.tree(of).CSVLogger(tmp_path))
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


@BOTH
@pytest.mark.parametrize(("every", "known"), [(0, None), (3, 3)])
def test_a_trainer_that_never_logs_has_no_steps_between_log_lines(tmp_path, monkeypatch, of, every, known):
    seen = []
    monkeypatch.setattr(hooks, "Setup", lambda **facts: seen.append(facts["log_every"]) or Setup(**facts))
    ours, _ = fit(tmp_path, of=of, log_every_n_steps=every)
    assert {*seen} == {known}
    assert ours.summary.failure is None
