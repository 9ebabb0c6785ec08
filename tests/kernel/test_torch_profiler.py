"""Recorded steps beside other profilers, forks and full disks: the program is unharmed."""

import gc
import os
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch.autograd import profiler as autograd_profiler, profiler_legacy
from torch.profiler import ProfilerActivity, profile, schedule

from perf_callbacks.kernel.process import torch_profiler
from perf_callbacks.kernel.process.torch_profiler import StepProfiler

resource = pytest.importorskip(
    "resource", reason="Windows has no limits of resources, with which a full disk is made here"
)

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="without fork, nothing is profiled"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


def train():
    (torch.ones(4, 4, requires_grad=True) @ torch.ones(4, 4)).sum().backward()


@pytest.fixture
def recording():
    profiler = StepProfiler("cpu")
    profiler.start(1)
    train()
    yield profiler
    profiler.stop()
    assert not torch.autograd._profiler_enabled()
    assert "ProfilerStep" not in autograd_profiler.KinetoStepTracker._step_dict


def test_a_profiler_in_another_thread_waits_for_the_end_of_the_recording(recording):
    counts = []

    def theirs():
        with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
            train()
        counts.append(len(profiler.key_averages()))

    thread = threading.Thread(target=theirs)
    thread.start()
    while recording.running:
        train()
    recording.stop()
    thread.join()
    assert counts[0] > 3
    train()
    assert not torch_profiler.foreign()


def test_after_a_long_wait_both_recordings_go_on(monkeypatch):
    """torch would crash if the first recording ended in the midst of the second, or after it."""
    monkeypatch.setattr(torch_profiler, "YIELD_SECONDS", 0.0)
    child = os.fork()
    if not child:
        with exiting():
            profiler = StepProfiler("cpu")
            profiler.start(1)
            thread = threading.Thread(target=in_profile)
            thread.start()
            thread.join()
            assert not profiler.running
            profiler.stop()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@contextmanager
def exiting():
    """Exit from a forked child: with status 0 if the block raised nothing."""
    status = 1
    try:
        yield
        status = 0
    finally:
        os._exit(status)


def in_profile():
    with profile(activities=[ProfilerActivity.CPU], acc_events=True):
        train()


@pytest.mark.parametrize(
    "theirs",
    [autograd_profiler.emit_itt, profiler_legacy.profile, autograd_profiler.profile],
    ids=lambda profiler: profiler.__name__,
)
def test_another_kind_of_profiler_begins_in_the_midst(recording, theirs):
    with theirs():
        train()
    assert not recording.running


def test_a_profiler_in_another_thread_keeps_a_recording_from_beginning():
    begun, over = threading.Event(), threading.Event()

    def theirs():
        with profile(activities=[ProfilerActivity.CPU]):
            begun.set()
            over.wait()

    thread = threading.Thread(target=theirs)
    thread.start()
    begun.wait()
    foreign = torch_profiler.foreign()
    over.set()
    thread.join()
    assert (foreign, torch_profiler.foreign()) == (True, False)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_profiler_that_warms_up_keeps_a_recording_from_beginning(frozen):
    assert not torch_profiler.foreign()
    with profile(
        activities=[ProfilerActivity.CPU], schedule=schedule(wait=0, warmup=2, active=1), acc_events=True
    ) as profiler:
        if frozen:
            gc.freeze()
        try:
            assert torch_profiler.foreign()
        finally:
            gc.unfreeze()
        for _ in range(3):
            train()
            profiler.step()
    assert not torch_profiler.foreign()


def test_a_forked_child_records_nothing(recording):
    assert recording.running
    child = os.fork()
    if not child:
        with exiting():
            tensor = torch.ones(2)
            for _ in range(1000):  # pages of torch's code that a child touches for the first time are no recording
                tensor = tensor + 1
            before = resident()
            for _ in range(20_000):
                tensor = tensor + 1
            assert resident() - before < 10_000_000  # a recording takes 60 MB
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_a_full_disk_is_an_error_and_leaves_no_file(recording, tmp_path):
    recording.stop()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(OSError, match="the disk may be full"):
            recording.export(tmp_path / "trace.json")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [*tmp_path.iterdir()] == []
