"""Fits that overlap, in one thread or two, in whatever order they begin and end: the process is as they found it."""

import gc
import queue
import threading
from pathlib import Path

import pytest
import torch
from collector import count_freezes
from hypothesis import given, settings, strategies as st
from torch.nn.modules import module as modules
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from perf_callbacks import PerfConfig
from perf_callbacks.kernel.process import collector
from perf_callbacks.loop import measure

CONFIG = PerfConfig(journal=False, peak_tflops="1", gc_interval=1)

DESCRIPTORS = Path("/proc/self/fd")


def process():
    """Whatever fits share."""
    return {
        "gc": (gc.isenabled(), gc.get_threshold(), [*gc.callbacks], gc.get_freeze_count() > collector.OWN_FROZEN),
        "backward": (torch.autograd.backward, torch.autograd.grad),
        "stance": torch._dynamo.eval_frame._stance.stance,
        "hooks": (len(modules._global_forward_pre_hooks), len(modules._global_forward_hooks)),
        "modes": len(_get_current_dispatch_mode_stack()),
        "descriptors": len([*DESCRIPTORS.iterdir()]) if DESCRIPTORS.is_dir() else None,
        "threads": {thread.name for thread in threading.enumerate()} - {"perf_callbacks watchdog"},
    }


class Fit:
    """A loop that is measured, a call at a time."""

    def __init__(self):
        self.model = torch.nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.perf = measure(model=self.model, optimizer=self.optimizer, loader=[torch.ones(3, 2)] * 99, config=CONFIG)
        self.batches = None

    def step(self):
        if self.batches is None:
            self.perf.__enter__()
            self.batches = iter(self.perf.loader)
        self.model(next(self.batches)).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def end(self, error):
        if self.batches is not None:
            self.perf.__exit__(error and type(error), error, None)
            self.batches.close()
            self.model(torch.ones(1, 2)).sum().backward()


class Worker:
    """A thread that does what it is told, and is waited for."""

    def __init__(self):
        self._calls, self._done = queue.SimpleQueue(), queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def __call__(self, call):
        self._calls.put(call)
        raised = self._done.get(timeout=280)
        if raised is not None:
            raise raised

    def found(self):
        modes = []
        self(lambda: modes.append(len(_get_current_dispatch_mode_stack())))
        return modes

    def end(self):
        self._calls.put(None)
        self._thread.join(60)

    def _run(self):
        while (call := self._calls.get()) is not None:
            try:
                call()
            except BaseException as error:  # noqa: BLE001 raised again where it was asked for
                self._done.put(error)
            else:
                self._done.put(None)


@pytest.fixture(scope="module", autouse=True)
def _imported():
    """The compiler is there, as in a program that compiles, and nothing is frozen."""
    torch.compile(torch.nn.Linear(1, 1), backend="eager")(torch.ones(1, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("perf_callbacks.advice.busy_lines.LOOKS", 1)  # the end of a fit waits for looks at the others
        count_freezes(patch)
        gc.collect()
        fit = Fit()
        for _ in range(12):
            fit.step()
        fit.end(None)
        yield


PLANS = st.integers(2, 4).flatmap(
    lambda fits: st.tuples(
        st.lists(st.integers(0, fits - 1), min_size=fits, max_size=14),
        st.permutations(range(fits)),
        st.lists(
            st.sampled_from([None, None, RuntimeError("no more"), KeyboardInterrupt()]), min_size=fits, max_size=fits
        ),
        st.lists(st.booleans(), min_size=fits, max_size=fits),
    )
)


@settings(max_examples=40)
@given(PLANS, st.booleans())
def test_whatever_overlaps_the_process_is_as_found(plan, early):
    """Steps of the fits in some order, then their ends in some order, one maybe early; some in a second thread."""
    found = process()
    _go_through(*plan, early=early)
    assert process() == found


def _go_through(steps, ends, errors, elsewhere, *, early):
    worker = Worker() if any(elsewhere) else None
    fits = [Fit() for _ in ends]

    def do(number, call, *arguments):
        worker(lambda: call(*arguments)) if elsewhere[number] else call(*arguments)

    try:
        for place, number in enumerate(steps):
            if early and place == len(steps) // 2:
                do(ends[0], fits[ends[0]].end, errors[ends[0]])
            if not (early and place >= len(steps) // 2 and number == ends[0]):
                do(number, fits[number].step)
        for number in ends[1:] if early else ends:
            do(number, fits[number].end, errors[number])
        assert worker is None or worker.found() == [0]
    finally:
        if worker is not None:
            worker.end()
