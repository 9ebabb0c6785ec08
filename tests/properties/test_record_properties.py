"""Whatever is in a journal, and wherever it is cut."""

import tempfile
from pathlib import Path

from fakes import a_run
from hypothesis import given, strategies as st

from perf_callbacks.kernel.records.codec import Entry, attempts, decode, encode
from perf_callbacks.kernel.records.fit_records import Checklist, Finding, Gc, Row, Span, Steps, Summary, Window
from perf_callbacks.kernel.records.journal_file import FileJournal, read
from perf_callbacks.kernel.records.machine_records import HeldMemory, Memory, OutOfMemory, Use
from perf_callbacks.kernel.records.rank_records import Stall
from perf_callbacks.kernel.records.summary_parts import (
    CpuSummary,
    EnergySummary,
    FlopsSummary,
    GcSummary,
    MemorySummary,
    StallSummary,
    StragglerSummary,
)

COUNTS = st.integers(0, 2**40)
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


RUNS = st.builds(a_run, run_id=WORDS, attempt=COUNTS, from_env=st.lists(WORDS, max_size=3).map(tuple))
ROWS = st.builds(Row, step=COUNTS, metrics=st.dictionaries(WORDS, SECONDS | COUNTS, max_size=5))
PAUSES = st.builds(
    Gc,
    step=COUNTS,
    stage=WORDS,
    generation=st.integers(0, 2),
    start=SECONDS,
    seconds=SECONDS,
    collected=COUNTS,
    automatic=st.booleans(),
)
SPANS = st.builds(Span, kind=WORDS, step=COUNTS, start=SECONDS, seconds=SECONDS)
WINDOWS = st.builds(
    Window,
    first_step=COUNTS,
    last_step=COUNTS,
    steps=COUNTS,
    ranks=COUNTS,
    seconds=SECONDS,
    samples=MAYBE,
    tokens=MAYBE,
    useful_tokens=MAYBE,
)
FINDINGS = st.builds(Finding, cause=WORDS, share=st.none() | SECONDS, evidence=WORDS, remedy=WORDS)
SUMMARIES = st.builds(
    Summary,
    run_id=WORDS,
    attempt=COUNTS,
    step=COUNTS,
    steps=COUNTS,
    included_steps=COUNTS,
    included_seconds=SECONDS,
    stage_seconds=st.dictionaries(WORDS, SECONDS, max_size=3),
    span_seconds=st.dictionaries(WORDS, SECONDS, max_size=3),
    samples=MAYBE,
    tokens=MAYBE,
    included_samples=MAYBE,
    included_tokens=MAYBE,
    included_useful_tokens=MAYBE,
    total_samples=MAYBE,
    total_tokens=MAYBE,
    flops=st.none()
    | st.builds(FlopsSummary, model_flops=MAYBE, seconds=st.none() | SECONDS, unknown=st.none() | WORDS),
    gc=st.none()
    | st.builds(GcSummary, collections=st.tuples(COUNTS, COUNTS, COUNTS), seconds=SECONDS, longest=SECONDS),
    stalls=st.none() | st.builds(StallSummary, count=COUNTS, seconds=SECONDS),
    memory=st.none() | st.builds(MemorySummary, parts_gb=st.dictionaries(WORDS, SECONDS, max_size=3)),
    energy=st.none() | st.builds(EnergySummary, joules=SECONDS, steps=COUNTS),
    cpu=st.none() | st.builds(CpuSummary, cpus=MAYBE, no_cpu_share=st.none() | SECONDS, other_cpus=st.none() | SECONDS),
    stragglers=st.none() | st.builds(StragglerSummary, steps=COUNTS, seconds_by_cause=st.dictionaries(WORDS, SECONDS)),
    findings=st.lists(FINDINGS, max_size=3).map(tuple),
    failure=st.none() | WORDS,
)
ITEMS = st.builds(
    Checklist, item=WORDS, status=WORDS, before=st.none() | WORDS, after=st.none() | WORDS, why=st.none() | WORDS
)
STALLS = st.builds(
    Stall, step=COUNTS, rank=COUNTS, stage=WORDS, since_seconds=SECONDS, stack=st.lists(WORDS, max_size=3).map(tuple)
)
USES = st.builds(
    Use,
    step=COUNTS,
    cpu_load=st.none() | SECONDS,
    sm_clock_mhz=MAYBE,
    throttled_by=st.lists(WORDS, max_size=3).map(tuple),
)
MEMORIES = st.builds(Memory, step=COUNTS, device=WORDS, source=WORDS, weights_gb=st.none() | SECONDS)
HELD = st.builds(HeldMemory, path=WORDS, kind=WORDS, gb=SECONDS)
FAILURES = st.builds(
    OutOfMemory,
    step=COUNTS,
    device=WORDS,
    error=WORDS,
    stage=st.none() | WORDS,
    requested_gb=st.none() | SECONDS,
    largest=st.lists(HELD, max_size=3).map(tuple),
    fitting_micro_batch=MAYBE,
)
RECORDS = (
    FAILURES
    | USES
    | MEMORIES
    | STALLS
    | RUNS
    | ITEMS
    | FINDINGS
    | ROWS
    | PAUSES
    | SPANS
    | WINDOWS
    | SUMMARIES
    | blocks()
)
ENTRIES = st.builds(Entry, st.floats(0, 1e6).map(lambda value: round(value, 6)), RECORDS)


@given(ENTRIES)
def test_every_record_makes_the_round_trip(entry):
    assert decode(encode(entry)) == entry


@given(st.lists(ENTRIES, max_size=6), st.data())
def test_a_journal_that_is_cut_at_any_byte_loses_its_torn_line_only(entries, data):
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
def test_no_line_whatsoever_is_an_error(line):
    decode(line)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS,
    lambda part: st.lists(part, max_size=3) | st.dictionaries(WORDS, part, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(["run", "steps", "row", "gc", "span", "window", "summary", "verdict"]), JSON, JSON)
def test_no_value_whatsoever_is_an_error(kind, t, step):
    import json

    decode(json.dumps({"type": kind, "t": t, "step": step, "metrics": step, "kind": step}))
    decode(json.dumps(step))


@given(st.lists(ENTRIES, max_size=12))
def test_attempts_put_together_are_the_journal_from_its_first_run_on(entries):
    parts = attempts(entries)
    together = [entry for part in parts for entry in part]
    assert together == entries[len(entries) - len(together) :]
    assert sum([type(entry.record).__name__ == "Run" for entry in entries]) == len(parts)
