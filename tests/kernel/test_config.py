"""What may be set, and the sentence that says so."""

import dataclasses

import pytest
from rows import each_row

from perf_callbacks import ConfigError, PerfConfig
from perf_callbacks.kernel.settings.config import rules
from perf_callbacks.kernel.settings.gone import GONE

PEAK = 'TFLOPS above 0 such as "989.5" or "bf16=989.5,fp32=67", or None'
COUNT = "a whole number from 1 on"
FLAG = "true or false"
DIRECTORY = "a directory, with {job}, {run} and {host} as placeholders and {{ or }} for a brace, or None"

BASELINE = "auto or None. `perf-callbacks compare` and `perf-callbacks scaling` take other runs"
FIELDS = {
    "enabled": ([True, False], ["yes", 1, None], FLAG),
    "flops": (["count", "estimate", "off"], ["counted", None, True], "one of count, estimate, off"),
    "peak_tflops": (
        [None, "989.5", "67", "0.5", "bf16=989.5,fp32=67", "bf16=10"],
        [True, -1, 0.0, "", "0", "0.0", "-1", "fast", "bf16=", "bf16=0", "bf16=0,fp32=67", "bf16=1,", "1e3", "67\n"],
        PEAK,
    ),
    "measure_peak": (["auto", "on", "off"], ["always", True], "one of auto, on, off"),
    "checklist": (["on", "off"], ["apply", False], "one of on, off"),
    "skip": (
        ["", "gc", "gc, affinity,", " loaders "],
        [None, "gc;affinity", ["gc"], "gcc", "gc affinity", "gcaffinity", "tf32"],
        "checklist items separated by commas: gc, loaders, affinity",
    ),
    "gc": (["sync", "freeze", "observe", "off"], ["sinc", "SYNC", False], "one of sync, freeze, observe, off"),
    "gc_interval": ([1, 100], [0, -1, 1.5, "100", True, None], COUNT),
    "affinity": (["auto", "node", "off"], ["numa", None], "one of auto, node, off"),
    "loaders": (["apply", "advise", "off"], ["on", None], "one of apply, advise, off"),
    "exchange": (["on", "off"], [True, "auto"], "one of on, off"),
    "stragglers": (["on", "off"], [True, "auto"], "one of on, off"),
    "window": ([1, 50, 10**18 - 1], [0, 2.0, "50", False], COUNT),
    "stall_after": (
        ["auto", "off", "120", "0.5"],
        ["never", "0", "-1", "", 0, True, None],
        'auto, off, or seconds above 0 such as "120"',
    ),
    "metrics": (["main", "all"], ["off", None], "one of main, all"),
    "console": (["main", "all", "off"], ["none", False], "one of main, all, off"),
    "journal": ([True, False], ["true", 0], FLAG),
    "report": ([True, False], ["html", None], FLAG),
    "output_dir": (
        [None, "", "out", "/somewhere/else", "out/{job}/{run}-{host}", "{{{job}}}", "{{any}}"],
        [1, b"out", "out/{jobs}", "{", "out}", "{}", "{run", "{{{run}}", "{job.real}", "{0}", "\n{"],
        DIRECTORY,
    ),
    "baseline": ([None, "auto"], ["", "out/runs", "1500", 1500, b"auto", True], BASELINE),
    "profile": (
        ["off", "auto", "20:3", "1:20"],
        ["on", "20", "0:3", "20:0", "20:21", "20:3 ", 20, None],
        'off, auto, or the first step and at most 20 steps, such as "20:3"',
    ),
    "max_journal_mb": ([1, 256], [0, 0.5, None], COUNT),
}


def test_every_field_has_a_rule_and_is_tested_here():
    assert list(rules()) == list(FIELDS) == [field.name for field in dataclasses.fields(PerfConfig)]


@each_row(
    ("name", "number", "text"),
    [("peak_tflops", 989.5, "989.5"), ("peak_tflops", 67, "67"), ("stall_after", 0.5, "0.5")],
)
def test_a_peak_or_seconds_may_be_a_number(name, number, text):
    assert getattr(PerfConfig(**{name: number}), name) == text


@each_row(("name", "value"), [(name, value) for name, (legal, _, _) in FIELDS.items() for value in legal])
def test_a_legal_value_is_kept_as_it_is(name, value):
    assert getattr(PerfConfig(**{name: value}), name) == value


@each_row(
    ("name", "value", "wanted"), [(name, value, wanted) for name, (_, bad, wanted) in FIELDS.items() for value in bad]
)
def test_a_bad_value_is_refused_in_words(name, value, wanted):
    with pytest.raises(ConfigError) as error:
        PerfConfig(**{name: value})
    assert str(error.value) == f"{name}: got {value!r}, wanted {wanted}."


def test_a_value_that_is_gone_names_its_replacement():
    for setting, instead in GONE.items():
        name, _, value = setting.partition("=")
        with pytest.raises(ConfigError) as error:
            PerfConfig(**{name: value})
        assert str(error.value) == f"{name}: {value!r} is gone: {instead}."


def test_a_configuration_is_frozen_and_only_takes_keywords():
    assert issubclass(ConfigError, ValueError)
    with pytest.raises(dataclasses.FrozenInstanceError):
        PerfConfig().window = 1
    with pytest.raises(TypeError):
        PerfConfig(True)


def test_the_argument_parser_of_transformers_makes_a_configuration():
    from transformers import HfArgumentParser

    words = "--gc observe --window 20 --journal false --report --peak_tflops bf16=989.5 --output_dir out"
    (config,) = HfArgumentParser(PerfConfig).parse_args_into_dataclasses(words.split())
    expected = {"gc": "observe", "window": 20, "journal": False, "report": True, "peak_tflops": "bf16=989.5"}
    assert config == PerfConfig(**expected, output_dir="out")
    assert HfArgumentParser(PerfConfig).parse_args_into_dataclasses([]) == (PerfConfig(),)


def test_a_number_too_long_to_be_written_is_refused_in_words():
    for name in ("window", "peak_tflops", "stall_after"):
        with pytest.raises(ConfigError, match=f"^{name}: got a number of 19 digits or more, wanted ") as error:
            PerfConfig(**{name: 10**5000})
        assert len(str(error.value)) < 200


def test_a_sentence_shows_no_control_character_and_no_long_value():
    assert str(ConfigError("a\x1b[2J\n")) == "a\\x1b[2J\\n"
    with pytest.raises(ConfigError) as error:
        PerfConfig(gc="x" * 5000)
    assert len(str(error.value)) < 400
