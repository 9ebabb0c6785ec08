"""Profiles of traces with known splits. Times in microseconds."""

from pathlib import Path

import pytest
from kineto_events import (
    BACKWARD,
    annotation,
    event,
    function,
    kernel,
    launch,
    memcpy,
    microseconds,
    operation,
    profile,
    step,
)
from snapshots import matches

from perf_callbacks.profiles.trace_events import TraceError

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def idle(*events):
    return microseconds(profile(*events).idle_seconds)


EVENTS = {
    "streams that overlap count once": [
        step(3, 0, 100), operation("aten::mm", 0, 10), launch(1, 0), kernel("gemm", 10, 40, 1),
        operation("aten::add", 20, 10), launch(2, 20), kernel("elementwise", 30, 40, 2, stream=8),
    ],
    "a span ends with the work that the steps launched": [
        step(1, 0, 50), step(2, 50, 50), operation("aten::mm", 10, 5), launch(1, 10), kernel("gemm", 20, 10, 1),
        operation("aten::mm", 90, 5), launch(2, 90), kernel("gemm", 100, 60, 2), launch(3, 110),
        kernel("gemm", 160, 50, 3),
    ],
    "a span begins when the work of earlier steps is done": [
        kernel("gemm", -20, 50, 77),  # launched before the recording
        step(5, 0, 100), operation("aten::mm", 10, 5), launch(1, 10), kernel("gemm", 30, 70, 1),
    ],
    "a last step without operations is no step": [
        step(1, 0, 50), operation("aten::mm", 5, 10), step(2, 50, 1),
    ],
    "without marked steps the span is the whole trace": [
        operation("aten::mm", 0, 5), launch(1, 1), kernel("gemm", 10, 30, 1),
    ],
    "idle time in the loader is data": [
        step(1, 0, 100), annotation(LOADER, 0, 60), operation("aten::mm", 70, 10), launch(1, 70, 4),
        kernel("gemm", 80, 20, 1),
    ],
    "idle time after a wait is sync for as long as the wait": [
        step(1, 0, 200), function("train.py(12): log", 20, 90), function("torch/_tensor.py(8): item", 21, 60),
        operation("aten::mm", 0, 10), launch(1, 0, 1), kernel("gemm", 1, 80, 1),
        operation("aten::item", 51, 35), launch(2, 51, 34, name="cudaStreamSynchronize"),  # waits for 30 us of work
        operation("aten::mm", 140, 10), launch(3, 140, 1), kernel("gemm", 141, 59, 3),
    ],
    "a wait without frames is named by its operation": [
        step(1, 0, 100), launch(1, 0, 0), kernel("gemm", 0, 50, 1), operation("aten::item", 10, 45),
        operation("aten::_local_scalar_dense", 11, 43), launch(2, 12, 40, name="hipMemcpyWithStream"), launch(3, 60, 1),
        kernel("gemm", 60, 40, 3),
    ],
    "within a graph gaps are of the device once the launch has returned": [
        step(1, 0, 100), operation("aten::mm", 0, 1), launch(1, 0, 30, name="hipGraphLaunch"),
        kernel("gemm", 10, 10, 1), kernel("gemm", 40, 10, 1), kernel("gemm", 60, 40, 1),
    ],
    "idle time in a collective call is communication": [
        step(1, 0, 100), operation("c10d::barrier", 0, 50), operation("aten::mm", 50, 10), launch(1, 50, 0),
        kernel("gemm", 60, 40, 1),
    ],
    "communication is exposed where nothing else runs": [
        step(1, 0, 100), launch(1, 0, 0), launch(2, 0, 0), operation("aten::mm", 0, 1), kernel("gemm", 0, 50, 1),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 30, 60, 2, stream=20),
        launch(3, 2, 0), memcpy("HtoD", 40, 60, 3, stream=21),
    ],
    "a backward belongs to the module of its forward": [
        step(1, 0, 200), function("nn.Module: Model_0", 0, 80), function("nn.Module: Block_1", 5, 70),
        function("nn.Module: MLP_2", 6, 60), function("nn.Module: Linear_3", 7, 50),
        operation("aten::addmm", 10, 10, sequence=5), launch(1, 11), kernel("gemm", 20, 10, 1),
        operation("autograd::engine::evaluate_function: AddmmBackward0", 100, 50, thread=BACKWARD, sequence=5),
        operation("aten::mm", 110, 10, thread=BACKWARD), launch(2, 111, thread=BACKWARD), kernel("gemm", 120, 20, 2),
        operation("aten::add", 170, 5), launch(3, 170), kernel("elementwise", 180, 5, 3),
    ],
    "a step that begins within the optimizer is not of the optimizer": [
        step(1, 0, 55), annotation("Optimizer.step#AdamW.step", 40, 20),
        operation("aten::_fused_adamw_", 42, 10), step(2, 55, 50), operation("aten::mm", 65, 30),
    ],
    "on a cpu operations stand for kernels": [
        step(1, 0, 100), annotation(LOADER, 0, 30), operation("aten::stack", 5, 20),  # a part of loading
        operation("aten::linear", 40, 30), operation("aten::addmm", 45, 20, shapes=[[4], [2, 3], [3, 4]]),
        annotation("gloo:all_reduce", 60, 30, thread=9),
    ],
    "devices of two processes are two devices": [
        kernel("gemm", 0, 10), {**kernel("gemm", 0, 30), "pid": 1},
    ],
    "a host far ahead does not count the work of earlier steps": [
        kernel("gemm", -20, 170, 77),  # still runs when the step has ended on the host
        step(5, 0, 100), operation("aten::mm", 10, 5), launch(1, 10), kernel("gemm", 150, 70, 1),
    ],
    "an annotation that names a collective is none": [
        step(1, 0, 50), annotation("my allreduce step", 0, 50), launch(1, 30), kernel("gemm", 32, 18, 1),
    ],
    "operations that nest deeply are read": [
        *[operation("aten::my_op", place, 10_000 - place) for place in range(3000)],
    ],
    "a kernel without a recorded launch is found by its id": [
        operation("aten::my_op", 0, 10, external_id=7), kernel("my_kernel", 5, 10, external_id=7),
    ],
}  # fmt: skip
"""By the law that it shows: the events of a trace."""


def outlined(found):
    """The lines of a profile, with times in microseconds."""
    parts = {"idle": found.idle_seconds, "classes": found.class_seconds, "waits": found.sync_seconds}
    parts |= {"modules": found.module_seconds or {}, "their backward": found.module_backward_seconds or {}}
    sums = {"span": found.span_seconds, "busy": found.busy_seconds, "communication": found.communication_seconds}
    sums["exposed"] = found.exposed_communication_seconds
    yield f"{found.timeline} {found.device} of {found.devices}, {found.kernels} kernels"
    yield f"steps {found.steps} from {found.first_step}"
    for name, times in {"sums": sums, **parts}.items():
        yield f"{name}: " + ", ".join([f"{key} {value:g}" for key, value in microseconds(times).items()])
    for row in found.operations:
        yield f"operation {row.name}, {row.kind}, {row.calls} calls, {row.shapes}, {row.seconds * 1e6:g}, {row.flops}"
    for row in found.copies:
        yield f"copy {row.kind}, {row.operation}, {row.line}, {row.calls} calls, {row.seconds * 1e6:g}"


def test_profiles_are_as_their_snapshot():
    """`WRITE_SNAPSHOTS=1` writes it anew."""
    shown = ""
    for name, events in EVENTS.items():
        shown += "".join([f"{line}\n" for line in (f"=== {name}", *outlined(profile(*events)))])
    assert matches(Path(__file__).with_name("profiles.txt"), shown)


@pytest.mark.parametrize(
    ("copy_start", "causes"), [(48, {"sync": 12, "host": 10}), (60, {"host": 10})], ids=["pageable", "pinned"]
)
def test_an_asynchronous_copy_that_begins_within_its_call_is_a_wait(copy_start, causes):
    events = [
        step(1, 0, 100),
        operation("aten::mm", 0, 1),
        launch(1, 0, 0),
        kernel("gemm", 0, copy_start, 1),
        launch(2, 38, 12, name="cudaMemcpyAsync"),
        memcpy("DtoH", copy_start, 2, 2),
        launch(3, 70, 2),
        kernel("gemm", 72, 28, 3),
    ]
    assert idle(*events) == causes


def test_a_stream_that_starts_late_waited_for_unknown_work():
    """The serving programs of TraceLens: recording began while the device worked on the batch before."""

    def events(*more, start):
        return [operation("aten::mm", 0, 10), launch(9, 0, 10), *more, kernel("gemm", start, 10, 9)]

    assert idle(*events(start=5000)) == {"unknown": 4990, "host": 10}
    assert idle(*events(start=15)) == {"host": 10, "device": 5}
    earlier = [launch(8, 0, 0), kernel("gemm", 0, 5, 8)]
    assert idle(*events(*earlier, start=5000)) == {"device": 4990, "host": 5}


def test_operations_are_grouped_by_shapes():
    events = [step(1, 0, 100)]
    for place, shapes in enumerate([[[2, 3], [3, 4]], [[2, 3], [3, 4]], [[9, 9], [], [[1, 2], [3]]]]):
        events += [
            operation("aten::mm", 20 * place, 10, external_id=place + 1, shapes=shapes, flops=48),
            launch(place + 1, 20 * place + 1),
            kernel("gemm", 20 * place + 5, 10, place + 1),
        ]
    found = profile(*events).operations
    assert [(one.name, one.kind, one.calls, one.shapes, one.flops) for one in found] == [
        ("aten::mm", "contraction", 2, "2x3, 3x4", 96),
        ("aten::mm", "contraction", 1, "9x9, [1x2, 3]", 48),
    ]


def test_copies_have_kind_operation_and_line():
    events = [step(1, 0, 200), function("train.py(40): forward", 0, 190), function("torch/nn/x.py(3): y", 0, 180)]
    plans = [
        (
            ["aten::contiguous", "aten::clone", "aten::copy_"],
            ["float", "float"],
            kernel("direct_copy_kernel", 20, 9, 1),
        ),
        (["aten::to", "aten::_to_copy", "aten::copy_"], ["c10::BFloat16", "float"], kernel("bfloat16_copy", 60, 8, 2)),
        (["aten::to", "aten::copy_"], ["float", "float"], memcpy("HtoD", 100, 7, 3)),
        (["aten::cat"], ["float"], kernel("CatArrayBatchedCopy", 140, 6, 4)),
        (["aten::zero_"], ["float"], event("gpu_memset", "Memset (Device)", 150, 5, device=0, correlation=5)),
    ]
    for place, (names, types, work) in enumerate(plans):
        events += [operation(name, 35 * place + inner, 30 - 2 * inner, types=types) for inner, name in enumerate(names)]
        events += [launch(place + 1, 35 * place + 5), work]
    assert [(one.kind, one.operation, one.line, one.calls) for one in profile(*events).copies] == [
        ("layout", "aten::contiguous", "train.py(40): forward", 1),
        ("float32 to bfloat16", "aten::to", "train.py(40): forward", 1),
        ("host to device", "aten::to", "train.py(40): forward", 1),
    ]


def test_a_trace_of_several_processes_is_refused():
    with pytest.raises(TraceError, match=r"^the trace has 2 processes\. Read the trace of one rank$"):
        profile(kernel("gemm", 0, 10, 1), launch(1, 0), {**launch(1, 5), "pid": 4322})
    of_kineto = {**function("<built-in method x>", 0, 9), "pid": 0}  # the frames around the profiler
    assert profile(kernel("gemm", 0, 10, 1), launch(1, 0), of_kineto).kernels == 1


def test_the_busiest_of_several_devices_is_described():
    other = {**kernel("gemm", 0, 90), "pid": 1}
    other["args"] = {"device": 1}
    found = profile(kernel("elementwise", 0, 10), other)
    assert (found.devices, found.device) == (2, None)
    assert microseconds(found.class_seconds) == {"contraction": 90}
