"""Placeholders in `output_dir`, and the directory of each rank."""

from pathlib import Path

from rows import each_row

from perf_callbacks.kernel.settings.output_directory import filled


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
