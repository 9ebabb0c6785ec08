"""Whatever is in a journal, and wherever it is cut."""

import json
import tempfile
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from fakes import a_run
from hypothesis import given, strategies as st

from perf_callbacks.kernel.records.codec import NAMES, Entry, attempts, decode, encode
from perf_callbacks.kernel.records.fit_records import Span, Steps
from perf_callbacks.kernel.records.journal_file import FileJournal, read

COUNTS = st.integers(0, 2**70)
SECONDS = st.floats(0, 1e6)
TIMES = st.floats(0, 1e6).map(lambda value: round(value, 7))
MAYBE = st.none() | COUNTS
WORDS = st.text(max_size=20)


@st.composite
def blocks(draw):
    length = draw(st.integers(1, 8))

    def column(values):
        return tuple(draw(st.lists(values, min_size=length, max_size=length)))

    stages = draw(st.sets(st.sampled_from(["data_time", "forward_time", "gc_time", "other_time"])))
    return Steps(
        step=column(COUNTS),
        step_time=column(st.none() | TIMES),
        samples=column(MAYBE),
        tokens=column(MAYBE),
        excluded=column(st.none() | WORDS),
        **{stage: column(st.none() | TIMES) for stage in sorted(stages)},
    )


SCALARS = {
    bool: st.booleans(),
    int: COUNTS,
    float: SECONDS,
    str: WORDS,
    NoneType: st.none(),
    Any: WORDS | st.booleans(),
}


def values(hint):
    """Values of a type as records have it."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint in SCALARS:
        return SCALARS[hint]
    if origin is Mapping:
        return st.dictionaries(*map(values, parts), max_size=2)
    if origin is tuple and parts[-1] is ...:
        return st.lists(values(parts[0]), max_size=2 if parts[0] in SCALARS else 1).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, parts))
    return st.one_of(map(values, parts)) if parts else made(hint)


def made(kind):
    """Records of a kind, or parts of records."""
    hints = get_type_hints(kind)
    return st.builds(kind, **{field.name: values(hints[field.name]) for field in fields(kind)})


RECORDS = st.one_of([blocks() if kind is Steps else st.deferred(lambda kind=kind: made(kind)) for kind in NAMES])
ENTRIES = st.builds(Entry, st.floats(0, 1e6).map(lambda value: round(value, 6)), RECORDS)


@given(ENTRIES)
def test_every_record_makes_the_round_trip(entry):
    assert decode(encode(entry)) == entry


@given(st.lists(ENTRIES, max_size=6), st.data())
def test_a_journal_cut_at_any_byte_loses_its_torn_line_only(entries, data):
    lines = [(encode(entry) + "\n").encode() for entry in entries]
    cut = data.draw(st.integers(0, sum(map(len, lines))))
    ends = [sum(map(len, lines[: number + 1])) - 1 for number in range(len(lines))]
    whole = [entry for entry, end in zip(entries, ends, strict=True) if end <= cut]
    later = [a_run(run_id="later"), Span(kind="checkpoint", step=1, start=0.0, seconds=1.0)]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rank0.jsonl"
        path.write_bytes(b"".join(lines)[:cut])
        assert list(read(path)) == whole
        journal = FileJournal(path, max_bytes=10**6, complain=print, began=0.0, clock=lambda: 1.0)
        for record in later:
            journal.write(record)
        journal.close()
        assert list(read(path)) == whole + [Entry(1.0, record) for record in later]
        assert [entry.record for entry in attempts(read(path))[-1]] == later


@given(st.text() | st.binary().map(lambda line: line.decode(errors="replace")))
def test_any_line_is_read_without_an_error(line):
    decode(line)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS,
    lambda part: st.lists(part, max_size=3) | st.dictionaries(WORDS, part, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(["run", "steps", "row", "gc", "span", "window", "summary", "verdict"]), JSON, JSON)
def test_any_value_is_read_without_an_error(kind, t, step):
    decode(json.dumps({"type": kind, "t": t, "step": step, "metrics": step, "kind": step}))
    decode(json.dumps(step))


@given(st.lists(ENTRIES, max_size=12))
def test_attempts_together_are_the_journal_from_its_first_run_on(entries):
    parts = attempts(entries)
    together = [entry for part in parts for entry in part]
    assert together == entries[len(entries) - len(together) :]
    assert sum([type(entry.record).__name__ == "Run" for entry in entries]) == len(parts)
