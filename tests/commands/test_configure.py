"""`perf-callbacks config`: it edits the section of accelerate's config, and nothing else."""

import sys

import pytest

from perf_callbacks.commands import configure, main
from perf_callbacks.kernel.settings.config import rules

TEXT = "distributed_type: 'NO'  # one process\nperf_callbacks:\n  window: 20  # steps\n"
ASKED = [*rules()]


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "acc.yaml"
    file.write_text(TEXT)
    return file


@pytest.fixture
def config(capsys):
    def run(*words):
        status = main(["config", "--config_file", "acc.yaml", *words])
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def answers(monkeypatch):
    """A person at a terminal, who presses Enter at the end."""

    def prepare(**said):
        questions = []

        def answer(question):
            questions.append(question)
            given = said.get(question.split()[0], [])
            return given.pop(0) if given else ""

        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
        monkeypatch.setattr("builtins.input", answer)
        return questions

    return prepare


def test_fields_are_set_and_shown(path, config):
    assert config("window=7", "gc=off", "output_dir=out put") == (
        0,
        "perf_callbacks in acc.yaml: window=7, gc=off, output_dir=out put\n",
        "",
    )
    assert path.read_text() == TEXT.replace("20  # steps\n", "7\n  gc: 'off'\n  output_dir: out put\n")


def test_a_warning_comes_before_the_section(path, config, monkeypatch):
    path.write_text("a: 1\n")
    printed, save = [], configure.accelerate_config.save
    monkeypatch.setattr("builtins.print", lambda text, **_: printed.append(text))
    monkeypatch.setattr(configure.accelerate_config, "save", lambda *words: (printed.append("saved"), save(*words)))
    assert config("window=7")[0] == 0
    assert printed == [configure.REFUSED, "saved", "perf_callbacks in acc.yaml: window=7"]
    assert path.read_text() == "a: 1\nperf_callbacks:\n  window: 7\n"


def test_fields_are_removed(path, config):
    assert config("--unset", "window")[:2] == (0, "perf_callbacks in acc.yaml: nothing\n")
    assert path.read_text() == "distributed_type: 'NO'  # one process\n"


def test_a_file_that_stays_the_same_is_not_written(path, config):
    before = path.stat()
    assert config("window=20")[0] == 0
    assert path.stat().st_ino == before.st_ino


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["windwo=7"], "the command line: there is no field 'windwo'; did you mean window?"),
        (["window=many"], "the command line: window: got 'many', wanted a whole number from 1 on."),
        (["window"], "got 'window', wanted FIELD=VALUE, such as window=20."),
        (["--unset", "gc"], "acc.yaml doesn't set gc."),
        ([], "without a terminal the command can't ask: give FIELD=VALUE, such as window=20."),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(path, config, words, sentence, monkeypatch):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    assert config(*words) == (2, "", f"perf-callbacks config: {sentence}\n")
    assert path.read_text() == TEXT


def test_a_missing_or_unwritable_file_is_refused_in_one_sentence(path, config, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    assert config("window=7") == (2, "", f"perf-callbacks config: {path} can't be written: it is write-protected.\n")
    assert path.read_text() == TEXT
    path.unlink()
    sentence = f"acc.yaml: there is no such file in {path.parent}."
    assert config("window=7") == (2, "", f"perf-callbacks config: {sentence}\n")


def test_without_a_file_it_is_accelerates_own(path, monkeypatch, capsys):
    monkeypatch.setenv("HF_HOME", str(path.parent))
    (path.parent / "accelerate").mkdir()
    path = path.rename(path.parent / "accelerate/default_config.yaml")
    assert main(["config", "window=7"]) == 0
    assert path.read_text() == TEXT.replace("20  # steps", "7")
    path.unlink()
    assert main(["config", "window=7"]) == 2
    sentence = f"there is no {path} yet: run `accelerate config` first, or name a --config_file."
    assert capsys.readouterr().err == f"perf-callbacks config: {sentence}\n"


def test_it_asks_for_every_field_and_shows_what_is_set(path, config, answers):
    questions = answers()
    assert config()[0] == 0
    assert [question.split()[0] for question in questions] == ASKED
    assert "window (a whole number from 1 on) [20]: " in questions
    assert "gc (one of sync, freeze, observe, off) [sync]: " in questions
    wanted = "a directory, with {job}, {run} and {host} as placeholders and {{ or }} for a brace, or None"
    assert f"output_dir ({wanted}) [none]: " in questions
    assert path.read_text() == TEXT


def test_answers_are_written_and_wrong_ones_asked_again(path, config, answers):
    questions = answers(window=["many"], got=["7"], gc=["off"], journal=["no"])
    status, printed, _ = config()
    assert status == 0
    assert "  got 'many', wanted a whole number from 1 on: " in questions
    assert printed.count("\n") == 2
    assert path.read_text() == TEXT.replace("20  # steps\n", "7\n  gc: 'off'\n  journal: false\n")


def test_an_answer_can_take_a_value_away(path, config, answers):
    path.write_text("perf_callbacks:\n  output_dir: out\n")
    answers(output_dir=["none"])
    assert config()[0] == 0
    assert path.read_text() == "perf_callbacks:\n  output_dir: null\n"


@pytest.mark.parametrize("error", [KeyboardInterrupt, EOFError])
def test_an_interrupt_writes_nothing(path, config, answers, monkeypatch, error):
    answers()

    def fail(_question):
        raise error

    monkeypatch.setattr("builtins.input", fail)
    status, printed, _ = config()
    assert (status, printed.splitlines()[-1]) == (130, "Nothing was written.")
    assert path.read_text() == TEXT
