"""What a signal handler raises within our code is told from our own errors, and each guard of ours lets it pass."""

import ast
import functools
import logging
import signal
import sys
from pathlib import Path

import pytest

import perf_callbacks
from perf_callbacks.kernel.failures import guard, logs
from perf_callbacks.kernel.foreign_errors import let_pass, of_handler, suppress

SRC = Path(perf_callbacks.__file__).parent


class PreemptError(Exception):
    """Raised by handlers."""


def raises(signum, frame):
    raise PreemptError


def restores_the_default(signum, frame):
    signal.signal(signum, signal.SIG_DFL)
    raise PreemptError


def deletes_its_arguments(signum, frame):
    del signum, frame
    raise PreemptError


def takes_anything(*_):
    raise PreemptError


def calls_another(signum, frame):
    raises(signum, None)


class Handles:
    def method(self, signum, frame):
        raise PreemptError

    def __call__(self, signum, frame):
        raise PreemptError


def takes_a_frame_and_a_number(frame, depth):
    raise ValueError(depth)


def test_a_function_that_gets_its_callers_frame_is_no_handler():
    with pytest.raises(ValueError, match="2") as raised:
        takes_a_frame_and_a_number(sys._getframe(), 2)
    assert of_handler(raised.value) is None


HANDLERS = {
    "function": raises,
    "restores the default": restores_the_default,
    "deletes its arguments": deletes_its_arguments,
    "takes anything": takes_anything,
    "calls another": calls_another,
    "method": Handles().method,
    "object": Handles(),
    "partial": functools.partial(lambda _, signum, frame: raises(signum, frame), "first"),
}


@pytest.fixture
def handled():
    before = signal.getsignal(signal.SIGUSR1)
    yield functools.partial(signal.signal, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def deep_within():
    sorted([1], key=lambda _: signal.raise_signal(signal.SIGUSR1))


def guarded(action):
    try:
        action()
    except Exception as error:  # noqa: BLE001 as in a guard of ours
        let_pass(error)


def wraps_errors():
    try:
        deep_within()
    except PreemptError as error:
        raise RuntimeError from error


def fails_while_it_handles():
    try:
        deep_within()
    except PreemptError:
        int("no")


@pytest.mark.parametrize("handler", HANDLERS)
def test_an_error_of_a_handler_passes_a_guard(handled, handler):
    handled(HANDLERS[handler])
    with pytest.raises(PreemptError):
        guarded(deep_within)


def test_an_error_from_an_error_of_a_handler_passes(handled):
    handled(raises)
    with pytest.raises(PreemptError):
        guarded(wraps_errors)


def test_an_error_that_is_its_own_cause_is_no_handlers():
    error, other = ValueError("no"), ValueError("no")
    error.__cause__, other.__cause__ = other, error
    assert of_handler(error) is None


def test_an_error_in_handling_an_error_of_a_handler_passes(handled):
    handled(raises)
    with pytest.raises(PreemptError):
        guarded(fails_while_it_handles)


def test_an_error_of_ours_in_an_except_block_of_the_program_stays_guarded(handled):
    handled(raises)
    try:
        deep_within()
    except PreemptError:
        guarded(lambda: int("no"))


def test_a_suppressed_kind_of_error_is_not_suppressed_for_a_handler(handled):
    def times_out(signum, frame):
        raise TimeoutError

    handled(times_out)
    with suppress(OSError):
        raise TimeoutError
    with pytest.raises(TimeoutError), suppress(OSError):
        deep_within()


BROAD = {"Exception", "BaseException", "OSError", "RuntimeError", "UNREADABLE"}
LETS_PASS = {"let_pass", "_let_pass", "fail", "_fail", "_err"}
OUTSIDE = (
    "commands",
    "kernel/foreign_errors.py",
    "kernel/settings/config_file.py",
    "launch/accelerate_config.py",
    "launch/run.py",
    "launch/site",
    "notifications/side_process.py",
    "profiles/side_process.py",
)
"""Run before or after training, in a process or at a moment of our own."""
UNGUARDED = {
    "kernel/process/patches.py": "collects errors, and raises the first when all is put back",
    "kernel/fit/recorder.py": "keeps an error in a callback of the collector, and raises it when the step ends",
}


def guards(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    finalizers = [node for node in ast.walk(tree) if getattr(node, "name", None) == "__del__"]
    unheard = {id(node) for finalizer in finalizers for node in ast.walk(finalizer)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and id(node) not in unheard and BROAD & names(node.type):
            yield node


def handlers(path):
    """Yield the names of the functions that a file passes to `guard`, and their definitions in this file, else None."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "guard" and node.args:
            handle = node.args[0]
            if isinstance(handle, ast.Call):  # `logs(...)` or `partial(self._err, ...)`
                handle = handle.args[0] if getattr(handle.func, "id", None) == "partial" else handle.func
            name = getattr(handle, "attr", getattr(handle, "id", None))
            yield name, functions.get(name)


def names(node):
    return {getattr(one, "id", None) for one in ast.walk(node)}


def lets_pass(guard):
    calls = [node.func for node in ast.walk(guard) if isinstance(node, ast.Call)]
    called = {getattr(call, "attr", getattr(call, "id", None)) for call in calls}
    return bool(called & LETS_PASS) or any(isinstance(node, ast.Raise) for node in ast.walk(guard))


def test_every_guard_lets_an_error_of_a_handler_pass():
    found = {}
    for path in SRC.rglob("*.py"):
        name = path.relative_to(SRC).as_posix()
        if name.startswith(OUTSIDE):
            continue
        found |= {f"{name}:{guard.lineno}": name for guard in guards(path) if not lets_pass(guard)}
    assert {*found.values()} == {*UNGUARDED}, found


def test_every_function_with_a_guard_lets_a_signal_handlers_error_pass():
    found = [one for path in SRC.rglob("*.py") for one in handlers(path)]
    assert found
    known = LETS_PASS | {logs.__name__}
    assert [name for name, function in found if name not in known and not (function and lets_pass(function))] == []


def test_a_guard_passes_an_error_on_and_lets_a_handlers_error_pass(handled, caplog):
    handled(raises)
    given = []
    with guard(given.append):
        int("no")
    with guard(logs(logging.getLogger("perf_callbacks").warning, "perf_callbacks: %s.", trace=True)):
        int("no")
    with guard() as attempt:
        int("no")
    assert [type(error) for error in given] == [ValueError]
    assert caplog.messages == [f"perf_callbacks: {attempt.reason}."]
    assert attempt.reason.startswith("ValueError: invalid literal")
    for handle in (None, let_pass, logs(logging.getLogger("perf_callbacks").warning, "%s")):
        with pytest.raises(PreemptError), guard(handle):
            wraps_errors()
    assert len(caplog.messages) == 1


def test_a_guard_lets_an_interrupt_pass():
    given = []
    with pytest.raises(KeyboardInterrupt), guard(given.append):
        raise KeyboardInterrupt
    assert given == []
