"""Callbacks of torch's compiler, and its warnings."""

import warnings

import torch
from torch._dynamo.callback import callback_handler

from perf_callbacks.kernel.process import compiler


def test_the_callback_after_ours_is_called_too():
    called = []

    def ours(*_):
        called.append("ours")

    def of_program(*_):
        called.append("program")

    compiler.on_compilation(ours)
    callback_handler.register_start_callback(of_program)
    try:
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
    finally:
        compiler.off_compilation(ours)
        callback_handler.remove_start_callback(of_program)
        torch._dynamo.reset()
    assert called == ["ours", "program"]


def test_no_filter_stays_where_warnings_are_caught_meanwhile():
    def callback(*_):
        pass

    before = list(warnings.filters)
    compiler.on_compilation(callback)
    with warnings.catch_warnings():
        compiler.off_compilation(callback)
    assert list(warnings.filters) == before

    with warnings.catch_warnings():
        compiler.on_compilation(callback)
    compiler.off_compilation(callback)
    assert list(warnings.filters) == before
