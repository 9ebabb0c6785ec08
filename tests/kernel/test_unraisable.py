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


def train(directory, each):
    model = torch.nn.Linear(4, 1)
    optimizer, config = torch.optim.SGD(model.parameters(), lr=0.1), PerfConfig(output_dir=str(directory))
    with measure(model=model, optimizer=optimizer, loader=[torch.ones(2, 4)] * 8, config=config) as perf:
        for step, batch in enumerate(perf.loader):
            model(batch).mean().backward()
            each(step)
            optimizer.step()
    return perf.summary.steps


@pytest.mark.parametrize("handled", [PreemptError, KeyboardInterrupt])
def test_a_signal_during_a_collection_is_raised_when_the_step_ends(tmp_path, handled):
    hook, seen = sys.unraisablehook, []

    def handle(_signum, _frame):
        raise handled

    def collect(step):
        seen.append(step)
        if step == 4:
            ours = [isinstance(getattr(one, "__self__", None), GcObserver) for one in gc.callbacks]
            gc.callbacks.insert(ours.index(True), trip)
            gc.collect()
            gc.callbacks.remove(trip)

    before, trip = signal.signal(signal.SIGUSR1, handle), functools.partial(getattr, Trips())
    try:
        with pytest.raises(handled):
            train(tmp_path, collect)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == [0, 1, 2, 3, 4]
    assert sys.unraisablehook is hook
    assert gc.isenabled()


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
    assert [one.exc_type for one in seen] == [PreemptError] * 8


def test_an_error_in_a_finalizer_of_the_program_is_printed_as_ever(tmp_path, monkeypatch, capsys):
    class Broken:
        def __del__(self):
            raise PreemptError("of the program")

    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    assert train(tmp_path, lambda _: Broken() and None) == 8
    assert capsys.readouterr().err.count("PreemptError: of the program") == 8
