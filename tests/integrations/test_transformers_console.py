"""What the console of a real Hugging Face Trainer prints of our metrics, in ten rows and the last one."""

import ast
import json
import sys
from types import ModuleType

import pytest
from metric_keys import MAIN, of_run
from trainings import models
from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from perf_callbacks import PerfConfig
from perf_callbacks.transformers import PerfCallback

ROW = [key for key in MAIN if key != "perf/samples_per_second"]
RUN = of_run(ROW)


def ours(row):
    return [key for key in row if key.startswith("perf/")]


def fit(directory, *callbacks, config=None, **arguments):
    """A fit of ten rows and the last one."""
    arguments = models.training_arguments(directory, **({"max_steps": 30, "logging_steps": 3} | arguments))
    callbacks = (PerfCallback(config), *callbacks)
    trainer = models.trainer(arguments, *callbacks, train_dataset=models.Tokens(120))
    return trainer, trainer.train()


def printed(capsys):
    """The rows on the console, as dictionaries."""
    lines = capsys.readouterr().out.replace("\r", "\n").splitlines()
    return [ast.literal_eval(line) for line in lines if line.startswith("{")]


@pytest.mark.parametrize(("disable_tqdm", "console"), [(True, PrinterCallback), (False, ProgressCallback)])
def test_the_console_shows_five_metrics_of_ours_in_each_row(tmp_path, capsys, disable_tqdm, console):
    trainer, _ = fit(tmp_path, disable_tqdm=disable_tqdm)
    assert any(isinstance(callback, console) for callback in trainer.callback_handler.callbacks)
    rows = printed(capsys)
    assert [ours(row) for row in rows] == [ROW] * 10 + [RUN]
    assert [next(iter(row)) for row in rows] == ["loss"] * 10 + ["train_runtime"]


@pytest.mark.parametrize("disable_tqdm", [True, False])
def test_loggers_and_the_saved_state_get_what_the_console_leaves_out(tmp_path, disable_tqdm):
    logged = []

    class Logger(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **_):
            logged.append(ours(logs))

    trainer, output = fit(tmp_path, Logger(), disable_tqdm=disable_tqdm, save_strategy="steps", save_steps=30)
    history = [ours(row) for row in trainer.state.log_history]
    assert [set(keys) for keys in logged] == [set(keys) for keys in history]
    assert all(len(keys) > 10 for keys in history)
    assert {*history[-1]} == {*ours(output.metrics)}
    saved = json.loads((tmp_path / "checkpoint-30" / "trainer_state.json").read_text())["log_history"]
    assert [{*ours(row)} for row in saved] == [{*keys} for keys in history[: len(saved)]]


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
def test_the_settings_say_what_the_console_and_the_loggers_get(tmp_path, capsys, settings, row):
    trainer, _ = fit(tmp_path, config=PerfConfig(**settings))
    logged = [{*ours(row)} for row in trainer.state.log_history]
    assert all((keys in ({*ROW}, {*RUN})) == (settings.get("metrics") == "main") for keys in logged)
    shown = printed(capsys)
    assert [{*ours(line)} for line in shown[:-1]] == [row(keys) for keys in logged[:-1]]
    assert len(ours(shown[-1])) == len(row(logged[-1]))


def test_a_printer_of_the_users_own_shows_five_too(tmp_path, capsys):
    class Mine(PrinterCallback):
        def on_log(self, args, state, control, logs=None, **_):
            logs |= {"mine": 1, "perf/mine": 2}
            print(dict(logs))

    trainer, _ = fit(tmp_path, Mine())
    mine = [row for row in printed(capsys) if "mine" in row]
    assert {len(ours(row)) for row in mine} == {6}  # with that of the program
    assert all(ours(row) for row in trainer.state.log_history)


def test_the_console_gets_all_metrics_back_after_an_error_in_it(tmp_path):
    class Broken(PrinterCallback):
        def on_log(self, args, state, control, logs=None, **_):
            self.logs = logs
            raise OSError("the terminal is gone")

    broken = Broken()
    with pytest.raises(OSError, match="the terminal is gone"):
        fit(tmp_path, broken)
    assert len(ours(broken.logs)) > len(ROW)
    assert "on_log" not in vars(broken)


def test_the_callbacks_of_the_console_are_as_before_after_training(tmp_path):
    trainer, _ = fit(tmp_path, PrinterCallback())
    assert not [callback for callback in trainer.callback_handler.callbacks if "on_log" in vars(callback)]


def test_the_table_of_a_notebook_has_the_loss_and_nothing_of_ours(tmp_path, monkeypatch):
    ipython = ModuleType("IPython")
    ipython.display = ModuleType("IPython.display")
    shown = []
    ipython.display.display = lambda *_, **__: type("Handle", (), {"update": lambda _, html: shown.append(html)})()
    ipython.display.HTML = lambda text: text
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    from transformers.utils.notebook import NotebookProgressCallback

    trainer, _ = fit(tmp_path, NotebookProgressCallback())
    trainer.callback_handler.callbacks.clear()
    assert "Training Loss" in shown[-1]
    assert "perf/" not in "".join(shown)
