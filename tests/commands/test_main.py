"""The command line itself, whichever command it names."""

import os
import subprocess
import sys

import pytest

from perf_callbacks.commands import COMMANDS, GONE, main
from perf_callbacks.commands.outcomes import ExitStatus
from perf_callbacks.version import __version__


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """A terminal in which no line is broken."""
    monkeypatch.setenv("COLUMNS", "400")


def exits(capsys, *words):
    """The exit status, and what was printed."""
    try:
        status = main(words)
    except SystemExit as ended:
        status = ended.code
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_the_version(capsys):
    assert exits(capsys, "--version") == (0, f"perf_callbacks {__version__}\n", "")


def test_the_help_tells_of_each_command(capsys):
    status, told, complaint = exits(capsys, "--help")
    listed = [line.split(maxsplit=1) for line in told.split("COMMAND\n")[-1].splitlines()]
    assert (status, complaint) == (0, "")
    assert listed == [[name, command.SUMMARY] for name, command in COMMANDS.items()]


def test_each_command_has_a_help_with_its_summary(capsys):
    for name, command in COMMANDS.items():
        status, printed, complaint = exits(capsys, name, "--help")
        assert (status, complaint, command.SUMMARY in printed) == (0, "", True)


@pytest.mark.parametrize("words", [(), ("nothing",), ("statu",), ("--vers",), ("flops",), ("flops", "--seq", "many")])
def test_a_line_without_a_command_is_refused(capsys, words):
    status, told, complaint = exits(capsys, *words)
    assert (status, told) == (2, "")
    assert complaint.startswith("usage: perf-callbacks ")


def test_a_command_that_is_gone_says_its_successor(capsys):
    for gone, instead in GONE.items():
        assert main([*gone.split(), "x"]) == 2
        assert capsys.readouterr() == ("", f"perf-callbacks {gone} is gone: {instead}.\n")


@pytest.mark.parametrize(
    "words", ["check", "status", pytest.param("launch train.py", marks=pytest.mark.needs_torch), "run -m json.tool"]
)
def test_a_setting_that_makes_no_sense_is_refused(monkeypatch, capsys, words):
    monkeypatch.setenv("PERF_CALLBACKS_GC", "sinc")
    name = words.partition(" ")[0]
    sentence = f"perf-callbacks {name}: PERF_CALLBACKS_GC: got 'sinc', wanted one of sync, freeze, observe, off.\n"
    assert exits(capsys, *words.split()) == (2, "", sentence)


@pytest.mark.skipif(os.name == "nt", reason="pipes are other ones there")
@pytest.mark.parametrize("words", [["--help"], ["status"], ["flops", "--params", "1e9", "--seq", "1"]])
def test_a_reader_that_has_left_is_no_error(words):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "perf_callbacks", *words],
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=120,
        check=False,
    )
    os.close(writer)
    assert done.returncode in {0, ExitStatus.PIPE_CLOSED}  # argparse forgives a pipe that is closed
    assert done.stderr == b""
