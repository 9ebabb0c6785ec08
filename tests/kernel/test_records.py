"""Records to lines and back."""

import json
import math
from dataclasses import replace
from typing import get_args

import pytest
from fakes import a_run
from rows import each_row
from summaries import a_summary_of

from perf_callbacks.kernel.records.codec import NAMES, Entry, attempts, decode, encode
from perf_callbacks.kernel.records.fit_records import SCHEMA, Checklist, Finding, Gc, Record, Row, Span, Steps, Window
from perf_callbacks.kernel.records.flops_record import Flops
from perf_callbacks.kernel.records.machine_records import HeldMemory, Memory, OutOfMemory, Use
from perf_callbacks.kernel.records.module_records import ModuleWork
from perf_callbacks.kernel.records.profile_record import Profile, ProfiledCopy, ProfiledOperation
from perf_callbacks.kernel.records.rank_records import Stall, Straggler
from perf_callbacks.kernel.records.summary_parts import CpuSummary, EnergySummary

FINDING = Finding(cause="data", share=0.25, evidence="Waiting for data", remedy="DataLoader(num_workers=2)")
SUMMARY = a_summary_of(
    run_id="a1",
    attempt=1,
    step=3,
    steps=3,
    included_steps=2,
    included_seconds=0.5,
    stage_seconds={"data_time": 0.125, "forward_time": 0.375},
    span_seconds={"evaluation": 2.5},
    wall_seconds={"startup": 0.25, "steps": 0.5, "evaluation": 2.5},
    samples=12,
    tokens=None,
    included_samples=8,
    included_tokens=None,
    included_useful_tokens=None,
    total_samples=12,
    total_tokens=None,
    gc_collections=(4, 1, 0),
    gc_seconds=0.25,
    gc_longest=0.125,
    findings=(FINDING, Finding(cause="sync", share=None, evidence="“blocking”", remedy="unsetting it")),
    failure="ValueError: “no”",
    energy=EnergySummary(joules=800.5, steps=40),
    cpu=CpuSummary(cpus=8, no_cpu_share=0.01, other_cpus=0.5, idle_cpus=6.5, load_average=1.5),
)
RECORDS = [
    a_run(),
    a_run(
        run_id="b2",
        attempt=2,
        step=40,
        from_env=("gc", "window"),
        from_file={"report": "a.yaml, line 1"},
        versions={"torch": "2.13"},
        started_unix=1.7e9,
    ),
    Steps(
        step=(1, 2), step_time=(0.5, None), forward_time=(0.1234567, None), samples=(4, None), excluded=("first", None)
    ),
    Steps(step=(3,), step_time=(12345.6789012,), gc_time=(0.0,), tokens=(0,), excluded=(None,)),
    Row(step=10, metrics={"perf/step_time": 0.1, "perf/samples_per_second": 1e-06}),
    Gc(step=2, stage="forward", generation=2, start=1 / 3, seconds=1e-7, collected=9, automatic=True),
    Span(kind="evaluation", step=5, start=2 / 3, seconds=0.1),
    Window(first_step=1, last_step=50, steps=49, ranks=2, seconds=1 / 3, samples=8, tokens=0, useful_tokens=None),
    Checklist(item="gc", status="applied", before="automatic", after="every 100 steps", why="ranks wait"),
    Checklist(item="loaders", status="not applicable"),
    FINDING,
    Flops(
        step=2,
        model_flops=2**70,
        hardware_flops=2**71,
        by_phase={"forward": 1, "backward": 2},
        by_dtype={"bfloat16": 3},
        source="counted",
        coverage=0.75,
        uncounted={"mylib::op": 2},
        lower_bound=True,
        over_six_n=1.0625,
        products=(
            ("aten::mm", "[2, 3] x [3, 4]", "bfloat16", 48),
            ("aten::bmm", "[1, 2, 3] x [1, 3, 4]", "float32", 48),
        ),
        reads={"train.py:10": 1},
        modules=(ModuleWork(path="layers.*.mlp", modules=2, forward_flops=2**60), ModuleWork(path="", parameters=None)),
    ),
    Stall(step=7, rank=3, stage="data", since_seconds=90.5, stack=("train.py:41 fetch", "a b.py:1 <lambda>")),
    Straggler(step=18, rank=1, cause="data", seconds_lost=1.5, steps=4),
    Use(step=7, cpu_load=0.25, resident_gb=1.5, sm_clock_mhz=1980, energy_joules=0.5, throttled_by=("power cap",)),
    Use(step=7),
    Memory(step=2, device="cpu", source="operations", weights_gb=0.5, gradients_gb=0.5, temporary_gb=0.125),
    OutOfMemory(
        step=4,
        device="cuda",
        error="CUDA out of memory.",
        stage="forward",
        module="layers.*",
        largest=(HeldMemory(path="layers.*", kind="weights", gb=2.5),),
        fitting_micro_batch=12,
    ),
    Profile(
        timeline="device",
        steps=3,
        first_step=20,
        span_seconds=0.5,
        busy_seconds=0.375,
        idle_seconds={"data": 0.125},
        class_seconds={"contraction": 0.25, "copy": 0.125},
        communication_seconds=0.0,
        exposed_communication_seconds=0.0,
        kernels=4,
        sync_seconds={},
        operations=(ProfiledOperation(name="aten::mm", kind="contraction", calls=3, seconds=0.25, shapes="2x3, 3x4"),),
        copies=(ProfiledCopy(kind="layout", operation="aten::contiguous", line=None, calls=1, seconds=0.125),),
        module_seconds={"": 0.125, "Model_0/Linear_0": 0.25},
        module_backward_seconds={"": 0.0625},
        flops=2.0**40,
        trace="profile0-5.json.gz",
    ),
    Profile(
        timeline="cpu",
        span_seconds=0.0,
        busy_seconds=0.0,
        idle_seconds={},
        class_seconds={},
        communication_seconds=0.0,
        exposed_communication_seconds=0.0,
        kernels=0,
        sync_seconds={},
    ),
    SUMMARY,
]


def test_each_kind_of_record_has_an_example_here():
    assert {type(record) for record in RECORDS} == {*get_args(Record)}


@each_row("record", RECORDS)
def test_every_record_makes_the_round_trip(record):
    entry = Entry(12.345678, record)
    assert decode(encode(entry)) == entry


@each_row("record", RECORDS)
def test_a_record_is_one_line_of_json_that_says_its_type_and_time(record):
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
        "",
        "\n",
        "not json",
        "null",
        "1",
        "[]",
        '"gc"',
        "{}",
        '{"type":"gc"}',
        '{"type":"gc","t":1}',
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
        GC[:-1],
        GC[1:],
        GC + GC,
        "[" * 100_000,
        "\x00\x00",
        "\ufffd",
    ],
)
def test_a_line_that_is_torn_or_foreign_is_passed_over(line):
    assert decode(line) is None
    assert [entry.record.kind for entry in filter(None, map(decode, [line, encode(Entry(0.0, RECORDS[6])), line]))] == [
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
        GC.replace('"seconds":1', '"seconds":-Infinity'),
        GC.replace('"seconds":1', '"seconds":1e999'),
        GC.replace('"seconds":1', '"seconds":1' + "0" * 200),
        GC.replace('"seconds":1', '"seconds":1' + "0" * 400 + ".0"),
        GC.replace('"seconds":1', '"seconds":1' + "0" * 240 + "e99"),
        GC.replace('"seconds":1', '"seconds":1.0E+0999'),
        '{"type":"steps","t":1,"step":[1,2],"step_time":[1.0,1e0400]}',
        GC.replace('"t":1', '"t":true'),
        GC.replace('"t":1', '"t":"1"'),
        GC.replace('"t":1', '"t":NaN'),
        '{"type":"steps","t":1,"step":[1,2],"step_time":[1.0]}',
        '{"type":"steps","t":1,"step":[1,2],"step_time":[1.0,2.0],"samples":[4]}',
        '{"type":"steps","t":1,"step":[1],"step_time":["1.0"]}',
        '{"type":"steps","t":1,"step":1,"step_time":1}',
        '{"type":"row","t":1,"step":1,"metrics":{"perf/mfu":"0.5"}}',
        '{"type":"row","t":1,"step":1,"metrics":{"perf/mfu":Infinity}}',
    ],
)
def test_wrong_numbers_and_columns_of_unequal_length_cost_their_line(broken):
    assert decode(GC) is not None
    assert decode(broken) is None


def test_a_number_that_is_none_is_written_as_unknown():
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


def test_what_only_its_writer_knows_may_hold_anything_finite():
    line = LINES[0]
    assert decode(line.replace('{"gc":"sync"}', '{"gc":[1,{"a":null}]}')).record.config == {"gc": [1, {"a": None}]}
    assert decode(line.replace('{"gc":"sync"}', '{"gc":[1,{"a":1e999}]}')) is None


def test_keys_that_came_later_are_dropped():
    assert decode(GC.replace('"t":1', '"t":1,"cause":"luck"')) == decode(GC) is not None


def test_a_journal_is_cut_into_its_attempts():
    row, first, second = Entry(1.0, RECORDS[4]), Entry(0.0, RECORDS[0]), Entry(0.0, RECORDS[1])
    assert attempts([]) == []
    assert attempts([row]) == []
    assert attempts([row, first, row, row, second, second, row]) == [[first, row, row], [second], [second, row]]


def test_a_summary_knows_the_time_of_a_step_if_it_has_one():
    assert SUMMARY.step_time == 0.25
