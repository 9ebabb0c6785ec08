"""Files of settings: what they say wins over the code, and what can't be read is refused in one sentence."""

import os
from pathlib import Path

import pytest
import torch
from rows import each_row
from trainings import runs

from perf_callbacks import ConfigError, PerfConfig, journal
from perf_callbacks.commands import main
from perf_callbacks.kernel.records.fit_records import Run
from perf_callbacks.kernel.settings import config_file
from perf_callbacks.loop import measure

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{after}: &{after} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, after in zip("abcdefghi", "bcdefghij", strict=True)
)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def in_force(text, name="perf.yaml", **environ):
    Path(name).write_text(text)
    return config_file.in_force(None, {"PERF_CALLBACKS_CONFIG": name, **environ})


def test_values_are_read_as_they_are_written():
    """PyYAML would make False of off, and 1203 of 20:3."""
    config = in_force(
        "flops: off\noutput_dir: 20:3\njournal: off\nreport: yes\npeak_tflops: 989.5\nwindow: 7 # steps\n"
    ).config
    assert config == PerfConfig(
        flops="off", output_dir="20:3", journal=False, report=True, peak_tflops="989.5", window=7
    )


@each_row("null", ["", " ~", " null", " none", ' ""'])
def test_a_field_can_be_set_to_nothing(null):
    Path("perf.yaml").write_text(f"output_dir:{null}\n")
    config = PerfConfig(output_dir="out")
    assert config_file.in_force(config, {"PERF_CALLBACKS_CONFIG": "perf.yaml"}).config.output_dir is None


def test_json_is_read_too():
    settings = in_force('{\n\t"window": 20,\n\t"gc": "off", "output_dir": null}', "perf.json")
    assert settings.config == PerfConfig(window=20, gc="off")
    assert settings.origins["gc"] == "perf.json, line 3"


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "{}"])
def test_an_empty_file_sets_nothing(text):
    assert in_force(text) == config_file.in_force(None, {})


def test_a_variable_that_names_no_file_sets_nothing():
    assert config_file.in_force(None, {"PERF_CALLBACKS_CONFIG": ""}) == config_file.in_force(None, {})


def test_the_kill_switch_reads_no_file():
    environ = {"PERF_CALLBACKS": "0", "PERF_CALLBACKS_CONFIG": "missing.yaml"}
    assert not config_file.in_force(None, environ).config.enabled


REFUSED = {
    "unknown field": ("# ours\nwindwo: 20\n", "perf.yaml, line 2: there is no field 'windwo'; did you mean window?"),
    "wrong type": ("window: 1.5\n", "perf.yaml, line 1: window: got '1.5', wanted a whole number from 1 on."),
    "a number of 5,000 digits": (
        "window: " + 5000 * "1",
        f"perf.yaml, line 1: window: got '{199 * '1'}…, wanted a whole number from 1 on.",
    ),
    "an item of the checklist that is none": (
        "skip: gcc",
        "perf.yaml, line 1: skip: got 'gcc', wanted checklist items separated by commas: gc, loaders, affinity.",
    ),
    "a control character in a value": (
        'gc: "\\e[2J"',
        "perf.yaml, line 1: gc: got '\\x1b[2J', wanted one of sync, freeze, observe, off.",
    ),
    "wrong choice": ("gc: now", "perf.yaml, line 1: gc: got 'now', wanted one of sync, freeze, observe, off."),
    "a list": ("gc: off\nskip: [gc]\n", "perf.yaml, line 2: got a sequence, wanted a single value."),
    "a mapping": ("gc:\n  interval: 5\n", "perf.yaml, line 1: got a mapping, wanted a single value."),
    "a list at the top": (
        "- gc\n",
        "perf.yaml, line 1: got a sequence, wanted fields with values, such as window: 20.",
    ),
    "no mapping": ("gc", "perf.yaml, line 1: got a scalar, wanted fields with values, such as window: 20."),
    "twice": ("gc: off\nwindow: 5\ngc: sync\n", "perf.yaml, line 3: gc is set a second time."),
    "no YAML": ("gc: off\nwindow: 5: 6\n", "perf.yaml, line 2 is not valid YAML: mapping values are not allowed here."),
    "two documents": ("gc: off\n---\ngc: sync\n", "perf.yaml, line 2 is not valid YAML: but found another document."),
    "a control character": (
        "gc: \x01",
        "perf.yaml is not valid YAML: unacceptable character #x0001: special characters are not allowed.",
    ),
    "NUL": ('output_dir: "a\\0b"', "perf.yaml, line 1: output_dir: a NUL character is not allowed."),
    "python/object": (
        "output_dir: !!python/object/apply:os.mkdir [boom]\n",
        "perf.yaml, line 1: the tag tag:yaml.org,2002:python/object/apply:os.mkdir is not allowed.",
    ),
    "python/name": (
        "output_dir: !!python/name:os.mkdir ''\n",
        "perf.yaml, line 1: the tag tag:yaml.org,2002:python/name:os.mkdir is not allowed.",
    ),
    "a tag of its own": ("gc: !now sync", "perf.yaml, line 1: the tag !now is not allowed."),
    "an anchor bomb": (BOMB, "perf.yaml, line 1: got a sequence, wanted a single value."),
    "a snake": ("a: &a [*a]\n", "perf.yaml, line 1: got a sequence, wanted a single value."),
    "too deep": ("a: " + "[" * 1000 + "]" * 1000, "perf.yaml is nested too deeply."),
    "too large": ("# " + "x" * 100_000, "perf.yaml is larger than 100,000 bytes."),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_makes_no_sense_is_refused_in_one_sentence(case, here, capsys, monkeypatch):
    text, sentence = REFUSED[case]
    with pytest.raises(ConfigError) as error:
        in_force(text)
    assert str(error.value).removeprefix("PERF_CALLBACKS_CONFIG: ") == sentence
    monkeypatch.setenv("PERF_CALLBACKS_CONFIG", "perf.yaml")
    assert main(["check"]) == 2
    assert capsys.readouterr().err == f"perf-callbacks check: {error.value}\n"
    assert [*here.iterdir()] == [here / "perf.yaml"], "nothing was run"


def test_a_file_that_is_missing_is_named_with_the_directory(here):
    with pytest.raises(ConfigError) as error:
        config_file.in_force(None, {"PERF_CALLBACKS_CONFIG": "perf.yaml"})
    assert str(error.value) == f"PERF_CALLBACKS_CONFIG: perf.yaml: there is no such file in {here}."
    with pytest.raises(ConfigError) as error:
        config_file.in_force(None, {"PERF_CALLBACKS_CONFIG": f"{here}/perf.yaml"})
    assert str(error.value) == f"PERF_CALLBACKS_CONFIG: {here}/perf.yaml: there is no such file."


def test_a_run_goes_by_the_file_and_its_journal_says_so(monkeypatch, capsys):
    Path("perf.yaml").write_text("window: 7\noutput_dir: out\ngc: off\nflops: off\n")
    monkeypatch.setenv("PERF_CALLBACKS_CONFIG", "perf.yaml")
    monkeypatch.setenv("PERF_CALLBACKS_GC", "observe")
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    with measure(model=model, optimizer=optimizer, loader=[torch.ones(1, 2)], config=PerfConfig(window=3)) as perf:
        for batch in perf.loader:
            model(batch).sum().backward()
            optimizer.step()
    (run,) = [entry.record for entry in journal.read("out") if isinstance(entry.record, Run)]
    assert (run.config["window"], run.config["gc"], run.config["flops"]) == (7, "observe", "off")
    assert run.from_env == ("gc",)
    places = {"window": "perf.yaml, line 1", "output_dir": "perf.yaml, line 2", "flops": "perf.yaml, line 4"}
    assert run.from_file == places
    said = runs.unwrapped(capsys.readouterr().out)
    assert "set by environment: gc, set by perf.yaml: window, output_dir, flops, journal" in said


@pytest.mark.parametrize("name", [".", "pipe"])
def test_what_is_no_file_is_not_opened(name):
    os.mkfifo("pipe")
    with pytest.raises(ConfigError, match="is not a file"):
        config_file.in_force(None, {"PERF_CALLBACKS_CONFIG": name})


def test_bytes_that_are_no_text_are_refused(here):
    (here / "perf.yaml").write_bytes(b"gc: \xff\n")
    with pytest.raises(ConfigError, match=r"'perf.yaml' can't be read: 'utf-8' codec can't decode byte 0xff"):
        config_file.in_force(None, {"PERF_CALLBACKS_CONFIG": "perf.yaml"})
