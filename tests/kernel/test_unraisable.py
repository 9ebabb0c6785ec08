"""Exceptions that Python would only print reach the program, if a callback of ours is to blame."""

import functools
import gc
import signal
import sys

import pytest
import torch
from late_signals import PreemptError, Trips

from perf_callbacks import PerfConfig
from perf_callbacks.kernel.process.gc_observer import GcObserver
from perf_callbacks.loop import measure


def train(directory, each, after=lambda: None):
    """Call `each` in each step, and `after` when the loader has ended."""
    model = torch.nn.Linear(4, 1)
    optimizer, config = torch.optim.SGD(model.parameters(), lr=0.1), PerfConfig(output_dir=str(directory))
    with measure(model=model, optimizer=optimizer, loader=[torch.ones(2, 4)] * 8, config=config) as perf:
        for step, batch in enumerate(perf.loader):
            model(batch).mean().backward()
            each(step)
            optimizer.step()
        after()
    return perf.summary.steps


def collect_with_a_signal():
    """A signal arrives before our callback of the collector runs."""
    trip = functools.partial(getattr, Trips())
    ours = [isinstance(getattr(callback, "__self__", None), GcObserver) for callback in gc.callbacks]
    gc.callbacks.insert(ours.index(True), trip)
    gc.collect()
    gc.callbacks.remove(trip)


@pytest.fixture
def handled(request):
    """The handler raises an exception."""

    def handle(_signum, _frame):
        raise request.param

    before = signal.signal(signal.SIGUSR1, handle)
    yield request.param
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("handled", [PreemptError, KeyboardInterrupt], indirect=True)
def test_a_signal_during_a_collection_is_raised_when_the_step_ends(tmp_path, handled):
    hook, seen = sys.unraisablehook, []

    def collect(step):
        seen.append(step)
        if step == 4:
            collect_with_a_signal()

    with pytest.raises(handled):
        train(tmp_path, collect)
    assert seen == [0, 1, 2, 3, 4]
    assert sys.unraisablehook is hook
    assert gc.isenabled()


@pytest.mark.parametrize("handled", [PreemptError], indirect=True)
def test_a_signal_after_the_last_step_is_printed(tmp_path, monkeypatch, handled):
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    assert train(tmp_path, lambda _: None, collect_with_a_signal) == 8
    assert [unraisable.exc_type for unraisable in seen] == [handled]


def test_a_hook_that_wraps_ours_may_stay_for_the_next_fit(tmp_path, monkeypatch):
    class Broken:
        def __del__(self):
            raise PreemptError

    seen, wrapped = [], []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)

    def wrap(_):
        inner = sys.unraisablehook
        monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: wrapped.append(inner(unraisable)))

    assert train(tmp_path, wrap) == 8
    assert train(tmp_path, lambda _: Broken() and None) == 8
    assert [unraisable.exc_type for unraisable in seen] == [PreemptError] * 8


def test_an_error_in_a_finalizer_of_the_program_is_printed_as_ever(tmp_path, monkeypatch, capsys):
    class Broken:
        def __del__(self):
            raise PreemptError("of the program")

    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    assert train(tmp_path, lambda _: Broken() and None) == 8
    assert capsys.readouterr().err.count("PreemptError: of the program") == 8
