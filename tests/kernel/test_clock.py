"""The clock of a thread's CPU time."""

import threading

from perf_callbacks.kernel import clock


def test_a_thread_that_waits_uses_no_cpu_and_a_busy_thread_does():
    seconds = clock.cpu_seconds_of(threading.get_ident())
    before = seconds()
    sum(range(1_000_000))
    busy = seconds() - before
    before = seconds()
    threading.Event().wait(0.01)
    assert 0 <= seconds() - before < busy


def test_a_system_without_such_clocks(monkeypatch):
    monkeypatch.delattr("time.pthread_getcpuclockid")
    assert clock.cpu_seconds_of(threading.get_ident()) is None
