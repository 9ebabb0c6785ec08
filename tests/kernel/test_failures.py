"""What the callback logs."""

import functools
import logging
import signal
from pathlib import Path

import pytest

from perf_callbacks.kernel import failures
from perf_callbacks.kernel.settings.resolution import resolve


def test_a_log_line_shows_no_control_character(caplog):
    logging.getLogger("perf_callbacks").warning("perf_callbacks: %s is\nno such\tthing", "a\x1b[2J\x07\x9b")
    assert caplog.messages == ["perf_callbacks: a\\x1b[2J\\x07\\x9b is\nno such\\tthing"]
    assert failures.describe(ValueError("no")) == "ValueError: no"


@pytest.mark.parametrize("argument", [str, Path, ValueError])
def test_a_line_end_in_an_argument_begins_no_line_of_its_own(caplog, argument):
    logging.getLogger("perf_callbacks").warning("no\njournal at %s: %d", argument("a\nERROR: b"), 2)
    assert caplog.messages == ["no\njournal at a\\nERROR: b: 2"]


def test_a_traceback_shows_no_control_character(caplog):
    logging.getLogger("perf_callbacks").warning("no", exc_info=ValueError("a\x1b[2J"))
    assert caplog.text.endswith("\nValueError: a\\x1b[2J\n")


def test_the_name_of_a_variable_is_escaped():
    (remark,) = resolve(None, {"PERF_CALLBACKS_\x1b]0;x\x07\nW": "1"}).remarks
    assert remark.startswith("PERF_CALLBACKS_\\x1b]0;x\\x07\\nW is no setting")


class Interrupted(Exception):  # noqa: N818 what happens while it is described
    """An error during whose description the user presses Ctrl-C."""

    __str__ = staticmethod(functools.partial(signal.raise_signal, signal.SIGINT))


def test_ctrl_c_in_a_description_reaches_the_program():
    with pytest.raises(KeyboardInterrupt):
        failures.describe(Interrupted())
