"""Compilations, as torch records them."""

import sys
import time
from types import SimpleNamespace

import pytest

from perf_callbacks.advice import compilations


def compiled(begin, end, reason=None):
    return SimpleNamespace(start_time_us=begin * 1e6, end_time_us=end * 1e6, recompile_reason=reason)


@pytest.fixture
def known(monkeypatch):
    found = []
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace(get_compilation_metrics=lambda: found))
    return found


def test_compilations_since_a_moment(known):
    known += [compiled(1, 9), compiled(10, 12), compiled(11, 12), compiled(20, 25, " tensor size 2, actual 3\nmore")]
    assert compilations.since(10) == (3, pytest.approx(7.0), 1, "tensor size 2, actual 3")


def test_a_backward_adds_its_time_to_the_compilation_of_its_forward(known):
    backward = compiled(3, 5)
    backward.is_forward = False
    known += [compiled(1, 2), backward]
    assert compilations.since(0) == (1, pytest.approx(3.0), 0, "")


def test_records_without_times_and_no_records(known, monkeypatch):
    known += [SimpleNamespace(), SimpleNamespace(start_time_us=9, end_time_us=None)]
    assert compilations.since(0) == (0, 0.0, 0, "")
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", None)
    assert compilations.since(0) == (0, 0.0, 0, "")


def test_torch_records_a_compilation_and_why_it_is_repeated():
    import torch  # `make test-pythons` has none, and skips this test

    torch._dynamo.reset()
    began = time.time()
    compiled = torch.compile(lambda x: x + 1, backend="eager", dynamic=False)
    for size in (2, 3):
        compiled(torch.ones(size))
    found = compilations.since(began)
    assert (found.number, found.repeated) == (2, 1)
    assert 0 < found.seconds < time.time() - began
    assert "size" in found.reason
