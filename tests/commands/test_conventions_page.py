"""docs/conventions.md says what the calculator says."""

import json
import re
import shlex
from pathlib import Path

import pytest

from perf_callbacks.commands import main
from perf_callbacks.flops.calculator.conventions import CONVENTIONS

PAGE = (Path(__file__).parents[2] / "docs" / "conventions.md").read_text(encoding="utf-8")
TABLES = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if line.startswith("|")]
PUBLISHED = [row for row in TABLES if row[1].startswith("`--")]


def printed(capsys, words, *more):
    assert main(["flops", *shlex.split(words.strip("`")), *more]) == 0
    return capsys.readouterr().out


def test_every_convention_has_its_formula():
    rows = [row[0].strip("`") for row in TABLES if len(row) == 4]
    assert rows[2:] == [*CONVENTIONS]


@pytest.mark.parametrize(("figures", "command", "names"), PUBLISHED, ids=lambda value: value[:8])
def test_a_published_figure_is_printed_by_its_command(capsys, figures, command, names):
    results = json.loads(printed(capsys, command, "--json"))["conventions"]
    values = [results[name.strip("` ")] for name in names.split(",")]
    shares = [100 * share for value in values for share in (value["mfu"], value["hfu"]) if share is not None]
    rates = [value["model_tflops_per_gpu"] for value in values]
    rates += [
        rate * value["hardware_flops_per_step"] / value["model_flops_per_step"]
        for rate, value in zip(rates, values, strict=True)
    ]
    for number in re.findall(r"([\d.]+) %", figures):
        assert min(abs(float(number) - share) for share in shares) <= 0.2
    for number in re.findall(r"([\d.]+) TFLOPS", figures):
        assert min(abs(float(number) - rate) for rate in rates) <= 0.2
    assert re.search(r"[\d.]+ (%|TFLOPS)", figures)


def test_the_table_of_the_page_is_printed_by_its_command(capsys):
    command, expected = re.findall(r"perf-callbacks flops (--layers 22 .*)\n```\n\n```text\n((?:.*\n)*?)```", PAGE)[0]
    assert printed(capsys, command) == expected
