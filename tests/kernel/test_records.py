"""Records to lines and back."""

import json
import math
from dataclasses import replace
from typing import get_args

import pytest
from fakes import a_run
from journals import FINDING, PROFILE, a_fit, a_summary
from rows import each_row

from perf_callbacks.kernel.records.codec import NAMES, Entry, attempts, decode, encode
from perf_callbacks.kernel.records.fit_records import SCHEMA, Finding, Record, Row, Span, Steps, Window
from perf_callbacks.kernel.records.machine_records import HeldMemory, Memory, OutOfMemory, Use
from perf_callbacks.kernel.records.rank_records import Stall, Straggler
from perf_callbacks.kernel.records.summary_parts import CpuSummary, EnergySummary

SUMMARY = a_summary(
    tokens=None,
    findings=(FINDING, Finding(cause="sync", share=None, evidence="“blocking”", remedy="unsetting it")),
    failure="ValueError: “no”",
    energy=EnergySummary(joules=800.5, steps=40),
    cpu=CpuSummary(cpus=8, no_cpu_share=0.01, other_cpus=0.5, idle_cpus=6.5, load_average=1.5),
)
SPAN = Span(kind="evaluation", step=5, start=2 / 3, seconds=0.1)
RECORDS = [
    *[entry.record for entry in a_fit(summary=False)],
    FINDING,
    SUMMARY,
    Row(step=10, metrics={"perf/step_time": 0.1, "perf/samples_per_second": 1e-06}),
    Window(first_step=1, last_step=50, steps=49, ranks=2, seconds=1 / 3, samples=8, tokens=0, useful_tokens=None),
    Straggler(step=18, rank=1, cause="data", seconds_lost=1.5, steps=4),
    OutOfMemory(
        step=4,
        device="cuda",
        error="CUDA out of memory.",
        stage="forward",
        module="layers.*",
        largest=(HeldMemory(path="layers.*", kind="weights", gb=2.5),),
        fitting_micro_batch=12,
    ),
    PROFILE,
]


def test_each_kind_of_record_has_an_example_here():
    assert {type(record) for record in RECORDS} == {*get_args(Record)}


@each_row("record", RECORDS)
def test_a_record_is_a_line_of_json_with_its_type_and_time(record):
    line = encode(Entry(1.5, record))
    assert "\n" not in line
    values = json.loads(line)
    assert (values["type"], values["t"]) == (NAMES[type(record)], 1.5)


def test_unknown_use_and_memory_is_left_out():
    assert json.loads(encode(Entry(1.5, Use(step=7, cpu_load=0.25)))) == {
        "type": "use",
        "t": 1.5,
        "step": 7,
        "cpu_load": 0.25,
    }
    assert "context_gb" not in encode(Entry(1.5, Memory(step=2, device="cpu", source="operations", weights_gb=0.5)))


def test_a_run_carries_the_version_of_the_journal():
    assert json.loads(encode(Entry(0.0, a_run())))["schema"] == SCHEMA == 2


def test_times_are_kept_to_a_tenth_of_a_microsecond():
    steps = decode(encode(Entry(0.0, Steps(step=(1, 2), step_time=(1 / 3, 1e-8), data_time=(2 / 3, None)))))
    assert steps.record == Steps(step=(1, 2), step_time=(0.3333333, 0.0), data_time=(0.6666667, None))


GC = '{"type":"gc","t":1,"step":1,"stage":"data","generation":0,"start":0,"seconds":1,"collected":0,"automatic":true}'


@each_row(
    "line",
    [
        *["", "\n", "not json", "null", "1", "[]", '"gc"', "{}", '{"type":"gc"}', '{"type":"gc","t":1}'],
        *["\x00\x00", "\ufffd", "[" * 100_000, GC[:-1], GC[1:], GC + GC],
        '{"type":"verdict","t":1,"step":1}',
        '{"type":["gc"],"t":1}',
        '{"type":null,"t":1}',
        GC.replace('"t":1', '"t":"soon"'),
        GC.replace('"t":1', '"t":null'),
        GC.replace('"t":1', '"t":1' + "0" * 400),
        GC.replace('"step":1', '"step":1' + "0" * 5000),
        GC.replace('"step":1', '"step":1' + "0" * 100),
        GC.replace('"step":1', '"step":-1' + "0" * 100),
        GC.replace('"step":1', '"cause":' + "[" * 100_000 + '"step":1'),
    ],
)
def test_a_line_that_is_torn_or_foreign_is_passed_over(line):
    assert decode(line) is None
    assert [entry.record.kind for entry in filter(None, map(decode, [line, encode(Entry(0.0, SPAN)), line]))] == [
        "evaluation"
    ]


LINES = [encode(Entry(1.0, record)) for record in RECORDS]
WRONG = (True, 1.5, "x", None, [], {}, [[None]], {"x": [None]}, [{"x": "x"}])


@each_row("line", LINES)
def test_a_value_of_another_type_costs_its_line(line):
    """Each field of each record in turn; only what a record itself could have written is read."""
    values = json.loads(line)
    read = [decode(json.dumps(values | {name: wrong})) is not None for name in values for wrong in WRONG]
    assert sum(read) < len(read) / 2


@each_row(
    "broken",
    [
        GC.replace('"step":1', '"step":1.5'),
        GC.replace('"step":1', '"step":true'),
        GC.replace('"step":1', '"step":"1"'),
        GC.replace('"stage":"data"', '"stage":null'),
        GC.replace('"automatic":true', '"automatic":1'),
        GC.replace('"seconds":1', '"seconds":NaN'),
        GC.replace('"seconds":1', '"seconds":1e999'),
        GC.replace('"seconds":1', '"seconds":1' + "0" * 200),
        GC.replace('"seconds":1', '"seconds":1' + "0" * 400 + ".0"),
        GC.replace('"seconds":1', '"seconds":1.0E+0999'),
        '{"type":"steps","t":1,"step":[1,2],"step_time":[1.0,1e0400]}',
        GC.replace('"t":1', '"t":true'),
        GC.replace('"t":1', '"t":"1"'),
        '{"type":"steps","t":1,"step":[1,2],"step_time":[1.0]}',
        '{"type":"steps","t":1,"step":[1,2],"step_time":[1.0,2.0],"samples":[4]}',
        '{"type":"steps","t":1,"step":[1],"step_time":["1.0"]}',
        '{"type":"steps","t":1,"step":1,"step_time":1}',
        '{"type":"row","t":1,"step":1,"metrics":{"perf/mfu":"0.5"}}',
        '{"type":"row","t":1,"step":1,"metrics":{"perf/mfu":Infinity}}',
    ],
)
def test_wrong_numbers_and_uneven_columns_cost_their_line(broken):
    assert decode(GC.replace('"t":1', '"t":1,"cause":"luck"')) == decode(GC) is not None  # keys may be unknown
    assert decode(broken) is None


def test_no_number_is_written_as_unknown():
    times = Steps(step=(1, 2, 3), step_time=(0.5, math.nan, math.inf), data_time=(None, math.nan, 0.25))
    assert decode(encode(Entry(1.0, times))).record == replace(
        times, step_time=(0.5, None, None), data_time=(None, None, 0.25)
    )


def test_a_path_that_is_no_utf_8_is_written_with_a_question_mark():
    stall = Stall(step=7, rank=3, stage="data", since_seconds=90.5, stack=("a\udc80.py:1 f", "“b”.py:2 g"))
    assert decode(encode(Entry(1.0, stall))).record == replace(stall, stack=("a?.py:1 f", "“b”.py:2 g"))


def test_subclasses_of_numbers_and_words_are_written_as_these():
    class Seconds(float):
        """Stands for NumPy's float64."""

    class Count(int):
        """Stands for an integer that knows its unit."""

    class Version(str):
        """Stands for torch's version."""

        __slots__ = ()

    run = a_run(versions={"torch": Version("2.13")}, config={"a": Seconds(0.5), "b": [Count(2)]})
    assert decode(encode(Entry(1.0, run))).record == a_run(versions={"torch": "2.13"}, config={"a": 0.5, "b": [2]})
    with pytest.raises(TypeError, match=r"^a record holds <object"):
        encode(Entry(1.0, a_run(config={"a": object()})))


def test_a_configuration_may_hold_anything_finite():
    line = LINES[0]
    assert decode(line.replace('{"gc":"sync"}', '{"gc":[1,{"a":null}]}')).record.config == {"gc": [1, {"a": None}]}
    assert decode(line.replace('{"gc":"sync"}', '{"gc":[1,{"a":1e999}]}')) is None


def test_a_journal_is_cut_into_its_attempts():
    row, first, second = Entry(1.0, SPAN), Entry(0.0, a_run()), Entry(0.0, a_run(attempt=2))
    assert attempts([]) == []
    assert attempts([row]) == []
    assert attempts([row, first, row, row, second, second, row]) == [[first, row, row], [second], [second, row]]
