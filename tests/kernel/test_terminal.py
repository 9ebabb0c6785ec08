"""Printing on a terminal or in a notebook."""

import sys

import pytest

from perf_callbacks.kernel.process import terminal


class Writes:
    """A stream that keeps each write apart."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def write(self, text: str) -> int:
        self.texts.append(text)
        return len(text)

    def flush(self) -> None:
        pass


def test_lines_and_their_end_are_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Writes()
    monkeypatch.setattr(sys, "stdout", stream)
    terminal.show("one\n  two")
    assert [text for text in stream.texts if text] == ["one\n  two\n"]
