"""The environment wins over a file, a file over the code, and a variable without a meaning is named."""

import re

# Fields of each kind: a text in the environment, its value, and a text that is refused.
from pathlib import Path

import pytest
from rows import each_row

from perf_callbacks import ConfigError, PerfConfig
from perf_callbacks.kernel.settings.config import rules
from perf_callbacks.kernel.settings.gone import GONE
from perf_callbacks.kernel.settings.output_directory import filled
from perf_callbacks.kernel.settings.resolution import FileEntry, resolve

FROM_ENV = {
    "enabled": ("off", False, "maybe"),
    "journal": ("No", False, "2"),
    "report": ("yes", True, "html"),
    "gc": ("observe", "observe", "none"),
    "loaders": ("advise", "advise", ""),
    "skip": ("gc,affinity", "gc,affinity", "gc;affinity"),
    "gc_interval": ("20", 20, "0"),
    "window": (" 7 ", 7, "1.5"),
    "max_journal_mb": ("1", 1, "-1"),
    "peak_tflops": ("bf16=989.5", "bf16=989.5", "fast"),
    "output_dir": ("elsewhere", "elsewhere", None),
    "baseline": ("auto", "auto", None),
}
BAD = {name: bad for name, (_, _, bad) in FROM_ENV.items() if bad is not None}


def variable(name):
    return f"PERF_CALLBACKS_{name.upper()}"


def at(line, name, text):
    return FileEntry(name, text, f"perf.yaml, line {line}")


@each_row("name", FROM_ENV)
def test_a_field_is_set_by_its_variable_or_by_a_file(name):
    text, value, _ = FROM_ENV[name]
    config = PerfConfig(**{name: value})
    settings = resolve(None, {variable(name): text})
    assert (settings.config, settings.from_env) == (config, (name,))
    settings = resolve(None, {}, [at(3, name, text)])
    assert (settings.config, settings.from_env, settings.from_file) == (config, (), {name: "perf.yaml, line 3"})
    assert settings.origins == {name: "perf.yaml, line 3"}
    assert resolve(config, {}).remarks == ()


@each_row(("name", "bad"), BAD.items())
def test_a_bad_value_is_refused_in_words_with_its_place(name, bad):
    wanted = f"got {bad!r}, wanted {rules()[name].wanted}."
    with pytest.raises(ConfigError) as error:
        resolve(None, {variable(name): bad})
    assert str(error.value) == f"{variable(name)}: {wanted}"
    with pytest.raises(ConfigError) as error:
        resolve(None, {variable(name): FROM_ENV[name][0]}, [at(3, name, bad)])
    assert str(error.value) == f"perf.yaml, line 3: {name}: {wanted}"


def test_an_optional_field_can_be_set_to_nothing():
    for name in ("peak_tflops", "output_dir"):
        for text in ("", "none", "None"):
            assert getattr(resolve(PerfConfig(**{name: "1"}), {variable(name): text}).config, name) is None


@each_row(
    ("name", "sentence"),
    [
        ("windwo", "perf.yaml, line 3: there is no field 'windwo'; did you mean window?"),
        ("perf_callbacks", "perf.yaml, line 3: there is no field 'perf_callbacks'."),
    ],
)
def test_an_unknown_field_is_refused_with_the_nearest_name(name, sentence):
    with pytest.raises(ConfigError) as error:
        resolve(None, {}, [at(3, name, "1")])
    assert str(error.value) == sentence


def test_the_environment_wins_over_a_file_and_a_file_over_the_code():
    entries = [at(1, "gc", "freeze"), at(2, "window", "20")]
    settings = resolve(
        PerfConfig(gc="off", window=5, flops="off"), {"PERF_CALLBACKS_GC": "observe", "HOME": "/"}, entries
    )
    assert settings.config == PerfConfig(gc="observe", window=20, flops="off")
    assert settings.from_env == ("gc",)
    assert settings.from_file == {"window": "perf.yaml, line 2"}
    assert settings.origins == {"gc": "PERF_CALLBACKS_GC", "window": "perf.yaml, line 2"}
    assert settings.remarks == ()


def test_variables_set_by_launch_are_from_accelerates_config():
    environ = {"PERF_CALLBACKS_GC": "observe", "PERF_CALLBACKS_WINDOW": "20", "PERF_CALLBACKS_SECTION": "window"}
    settings = resolve(None, environ)
    assert (settings.from_env, settings.from_file) == (("gc",), {"window": "accelerate's config"})
    assert settings.remarks == ()


@each_row("off", ["0", "false", "No", " off "])
def test_the_kill_switch_wins_over_everything(off):
    everything = {variable(name): bad for name, bad in BAD.items()} | {"PERF_CALLBACKS_WINDWO": "1"}
    entries = [at(1, "windwo", "1")]
    settings = resolve(PerfConfig(enabled=True, report=True), everything | {"PERF_CALLBACKS": off}, entries)
    assert settings.config == PerfConfig(enabled=False, report=True)
    assert settings.origins == {"enabled": "PERF_CALLBACKS"}
    assert (settings.from_env, settings.remarks) == (("enabled",), ())


def test_a_switch_that_is_on_changes_nothing():
    for switch in ("1", "true", ""):
        assert resolve(PerfConfig(enabled=False), {"PERF_CALLBACKS": switch}) == resolve(PerfConfig(enabled=False), {})


def test_a_switch_that_is_neither_on_nor_off_is_refused_in_words():
    with pytest.raises(ConfigError) as error:
        resolve(None, {"PERF_CALLBACKS": "maybe"})
    assert str(error.value) == "PERF_CALLBACKS: got 'maybe', wanted 0 or 1."


@each_row(
    ("name", "sentence"),
    [
        ("WINDWO", "PERF_CALLBACKS_WINDWO is no setting; did you mean PERF_CALLBACKS_WINDOW?"),
        ("GC_INTERVALL", "PERF_CALLBACKS_GC_INTERVALL is no setting; did you mean PERF_CALLBACKS_GC_INTERVAL?"),
        ("CONFG", "PERF_CALLBACKS_CONFG is no setting; did you mean PERF_CALLBACKS_CONFIG?"),
        ("LIKE_NO_FIELD_AT_ALL_" * 3, f"PERF_CALLBACKS_{'LIKE_NO_FIELD_AT_ALL_' * 3} is no setting."),
    ],
)
def test_a_variable_without_a_meaning_is_named_with_the_nearest(name, sentence):
    assert resolve(None, {"PERF_CALLBACKS_" + name: "1"}).remarks == (sentence,)


def test_a_variable_whose_value_is_gone_changes_nothing():
    for setting, instead in GONE.items():
        name, _, value = setting.partition("=")
        settings = resolve(PerfConfig(**{name: "off"}), {variable(name): f" {value} "})
        assert settings.remarks == (f"{variable(name)}: {value!r} is gone: {instead}.",)
        assert (getattr(settings.config, name), settings.from_env, settings.origins) == ("off", (), {})
        with pytest.raises(ConfigError, match=f"^perf.yaml, line 2: {name}: {value!r} is gone: {re.escape(instead)}.$"):
            resolve(None, {}, [FileEntry(name, value, "perf.yaml, line 2")])


ON_EVENT = "PERF_CALLBACKS_ON_EVENT"

SHELL = "got '{}', which only a shell understands, wanted a command with its arguments; for a shell, write sh -c '...'."


@each_row(
    ("text", "words"),
    [
        ("notify.sh", ("notify.sh",)),
        ("  curl -d @- 'https://x.example/a b'", ("curl", "-d", "@-", "https://x.example/a b")),
        ("sh -c 'cat >> \"$HOME/events\"'", ("sh", "-c", 'cat >> "$HOME/events"')),
        ("", ()),
        ("off", ()),
        (" None ", ()),
    ],
)
def test_the_command_for_events_is_split_as_by_a_shell(text, words):
    settings = resolve(None, {ON_EVENT: text})
    assert settings.on_event == words
    assert settings.from_env == (("on_event",) if words else ())
    assert settings.config == PerfConfig()
    assert settings.remarks == ()


@each_row(
    ("text", "reason"),
    [
        ("secret 'a", "no closing quotation, wanted a command with its arguments, quoted as for a shell."),
        ("''", "the command is empty, wanted a command with its arguments."),
        *[(f"secret {word} secret", SHELL.format(word)) for word in ("|", ">>", "&&", ";", "2>&1")],
    ],
)
def test_a_bad_command_is_refused_without_being_shown(text, reason):
    with pytest.raises(ConfigError) as error:
        resolve(None, {ON_EVENT: text})
    assert str(error.value) == f"{ON_EVENT}: {reason}"


def test_no_file_and_no_code_can_set_the_command():
    with pytest.raises(ConfigError) as error:
        resolve(None, {}, [at(3, "on_event", "notify.sh")])
    assert str(error.value) == (
        "perf.yaml, line 3: on_event is set by the environment alone: PERF_CALLBACKS_ON_EVENT='python notify.py'."
    )
    with pytest.raises(TypeError, match="on_event"):
        PerfConfig(on_event="notify.sh")
    assert "on_event" not in rules()


def test_the_arguments_of_the_command_are_not_shown():
    settings = resolve(None, {ON_EVENT: "curl https://x.example/secret"})
    assert settings.shown["on_event"] == "curl …"
    assert settings.origins == {"on_event": ON_EVENT}
    assert resolve(None, {}).shown["on_event"] is None


def test_a_run_that_is_switched_off_has_no_command():
    assert resolve(None, {ON_EVENT: "notify.sh", "PERF_CALLBACKS": "0"}).on_event == ()


def test_a_baseline_of_old_ends_no_training():
    for text in ("1500", "/runs/good"):
        settings = resolve(None, {"PERF_CALLBACKS_BASELINE": text})
        assert settings.config.baseline is None
        assert settings.remarks[0].startswith(f"PERF_CALLBACKS_BASELINE: got {text!r}, wanted auto or None.")


@each_row(
    ("template", "directory"),
    [
        ("out", "out"),
        ("out/{job}/{run}-{host}", "out/4711/a1-node7"),
        ("{job}{job}", "47114711"),
        ("out/{{job}}", "out/{job}"),
        ("out/{{{job}}}", "out/{4711}"),
        ("}}{{", "}{"),
    ],
)
def test_placeholders_are_replaced_and_doubled_braces_are_braces(template, directory):
    assert filled(template, job="4711", run="a1", host="node7") == directory


def test_an_unknown_placeholder_has_a_name():
    assert filled("{job}/{host}", job=None, run="a1", host=None) == "no_job/localhost"
    assert filled("{run}", job=None, run=None, host=None) == "no_job"
    assert filled("{run}", job="4711", run=None, host=None) == "4711"


@each_row("value", ["../../etc", "/etc", "..", ".", "~", "a\x1b[2J", "a b\n", "C:\\x", "x" * 5000, "{run}"])
def test_a_value_is_a_single_name(value):
    name = filled("{job}", job=value, run="a1", host=None)
    assert Path(name).name == name
    assert name.isprintable()
    assert name not in {"", ".", ".."}
    assert len(name) <= 100
