"""Printing on a terminal or in a notebook."""

import sys

from perf_callbacks.kernel.process import terminal


class Writes(list):
    """A stream that keeps each write apart."""

    write = list.append

    def flush(self):
        pass


def test_lines_and_their_end_are_a_single_write(monkeypatch):
    stream = Writes()
    monkeypatch.setattr(sys, "stdout", stream)
    terminal.show("one\n  two")
    assert [text for text in stream if text] == ["one\n  two\n"]
