"""Laws of profiles, for any trace."""

import json

import pytest
from hypothesis import given, strategies as st
from kineto_events import annotation, function, kernel, launch, memcpy, operation, profile, step

from perf_callbacks.kernel.records.codec import pack
from perf_callbacks.profiles.idle import CAUSES
from perf_callbacks.profiles.kernel_classes import CLASSES
from perf_callbacks.report import profile_text

TIMES = st.tuples(st.integers(0, 300), st.integers(1, 60))
IDS = st.integers(1, 6)
THREADS = st.integers(1, 3)


def made(make, names, *more):
    return st.builds(lambda name, times, *rest: make(name, *times, *rest), st.sampled_from(names), TIMES, *more)


HOST = [
    made(operation, ["aten::mm", "aten::copy_", "c10d::allreduce_", "aten::\x1b[2Jadd"]),
    made(annotation, ["enumerate(DataLoader)#X.__next__", "Optimizer.step#SGD.step", "gloo:all_reduce"]),
    made(function, ["nn.Module: Model_0", "nn.Module: Linear_1", "train.py(3): f", "<built-in method x>"]),
    st.builds(
        lambda name, times, correlation: launch(correlation, *times, name=name),
        st.sampled_from(["cudaLaunchKernel", "cudaDeviceSynchronize"]),
        TIMES,
        IDS,
    ),
    st.builds(lambda times: step(times[0], *times), TIMES),
]
DEVICE = [
    st.builds(
        lambda name, times, correlation, stream: kernel(name, *times, correlation, stream=stream),
        st.sampled_from(["gemm", "elementwise", "ncclDevKernel_AllReduce", "flash_fwd"]),
        TIMES,
        IDS,
        THREADS,
    ),
    st.builds(
        lambda times, correlation, stream: memcpy("HtoD", *times, correlation, stream=stream), TIMES, IDS, THREADS
    ),
]
TRACES = st.tuples(
    st.lists(st.one_of(*HOST, *DEVICE), max_size=25),
    # an operation in the last step, and work of its own
    st.just([step(9, 500, 40), operation("aten::mm", 500, 10), launch(99, 500)]),
    st.sampled_from([[], [kernel("gemm", 505, 30, 99)]]),
).map(lambda parts: [event for part in parts for event in part])


@given(TRACES)
def test_parts_sum_to_the_span_and_none_is_negative(events):
    parts = profile(*events)
    idle, classes = parts.idle_seconds, parts.class_seconds
    assert parts.busy_seconds + sum(idle.values()) == pytest.approx(parts.span_seconds)
    assert sum(classes.values()) == pytest.approx(parts.busy_seconds)
    assert {*idle} <= {*CAUSES}
    assert {*classes} <= {*CLASSES}
    assert sum(parts.sync_seconds.values()) <= idle.get("sync", 0.0) + 1e-12
    assert 0 <= parts.exposed_communication_seconds <= parts.communication_seconds + 1e-12
    assert parts.communication_seconds <= parts.busy_seconds + 1e-12
    if parts.module_seconds is not None:
        assert sum(parts.module_seconds.values()) == pytest.approx(parts.busy_seconds)
    seconds = [*idle.values(), *classes.values(), *[operation.seconds for operation in parts.operations]]
    assert min(seconds, default=0.0) >= 0.0


@given(TRACES, st.randoms(use_true_random=False), st.integers(-(10**6), 10**6), st.sampled_from([0.5, 4]))
def test_shares_depend_on_no_order_no_begin_and_no_speed(events, random, later, factor):
    plain, shuffled = profile(*events), profile(*random.sample(events, len(events)))
    assert shuffled.busy_seconds == plain.busy_seconds
    assert shuffled.idle_seconds == pytest.approx(plain.idle_seconds)
    moved = profile(*[{**event, "ts": event["ts"] + later} for event in events])
    assert moved.class_seconds == pytest.approx(plain.class_seconds)
    slower = profile(*[{**event, "ts": event["ts"] * factor, "dur": event["dur"] * factor} for event in events])
    assert slower.busy_share == pytest.approx(plain.busy_share)


@given(TRACES, st.integers(40, 80))
def test_the_text_fits_the_terminal_and_holds_no_commands(events, columns):
    text = profile_text.render(profile(*events), columns)
    assert text.replace("\n", "").isprintable()
    assert columns < 60 or max(map(len, text.splitlines())) <= columns


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
NAMES = ["correlation", "External id", "Input Dims", "Input type", "Sequence number", "device", "flops"]
STRANGE = st.fixed_dictionaries(
    {
        "ph": st.just("X"),
        "pid": st.just(4321),
        "cat": st.sampled_from(["kernel", "cpu_op", "cuda_runtime", "user_annotation", "python_function"]),
        "name": st.sampled_from(["aten::copy_", "autograd::engine::evaluate_function: X", "cudaDeviceSynchronize", ""]),
        "ts": st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
        "dur": st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.none(),
        "args": st.dictionaries(st.sampled_from(NAMES), VALUES),
    }
)


@given(st.lists(STRANGE, max_size=8))
def test_values_that_no_profiler_writes_end_in_no_error(events):
    found = profile(kernel("gemm", 0, 10), operation("aten::mm", 0, 10), *events)
    json.dumps(json.loads(pack(found)), allow_nan=False)
    assert profile_text.render(found).replace("\n", "").isprintable()


def test_a_copy_with_a_launch_comes_before_its_equal():
    begin, launched = [step(0, 0, 1), operation("aten::mm", 0, 1)], launch(1, 0, 1)
    copies = memcpy("HtoD", 2, 1, 1), memcpy("HtoD", 2, 1, 2)
    end = [step(9, 500, 40), operation("aten::mm", 500, 10), launch(99, 500)]
    one, other = [profile(*begin, launched, *both, *end).idle_seconds for both in (copies, copies[::-1])]
    assert one == pytest.approx(other)
