"""What the classes of devices know, with fakes of torch's modules for CUDA, ROCm and other accelerators."""

import math
import sys
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from fakes import FakeEvent, FakeStream
from rows import each_row

from perf_callbacks.kernel.engine.marks import BACK, END, WAIT
from perf_callbacks.kernel.engine.stages import Stage
from perf_callbacks.kernel.process import device, event_timeline
from perf_callbacks.kernel.process.device import Cpu, Cuda, Device, Hpu, Mps, Npu, Rocm, Xla, Xpu
from perf_callbacks.kernel.process.device_facts import Allocator, Features, Timing


class Streams:
    """torch's module of an accelerator with two devices, whose streams work when an event is asked for."""

    def __init__(self, current=0):
        self.current = current
        self.streams = [FakeStream(lambda: math.inf), FakeStream(lambda: math.inf)]
        self.asked_for_stream = 0

    def current_device(self):
        return self.current

    def current_stream(self, place):
        self.asked_for_stream += 1
        return self.streams[place.index]

    def Event(self, *, enable_timing):  # noqa: N802 as in torch
        assert enable_timing
        return Recorded(self)


class Recorded(FakeEvent):
    """An event that is recorded on a given stream, or else on the stream of the current device."""

    def __init__(self, module):
        self._module = module
        super().__init__(module.streams[module.current])

    def record(self, stream=None):
        self._stream = stream or self._module.streams[self._module.current]
        super().record()


@pytest.fixture
def streams(monkeypatch):
    module = Streams()
    monkeypatch.setattr(Device, "module", module)
    return module


def a_step(timeline, stream):
    """The seconds of a step with 4 s of forward and 8 s of backward on a stream."""
    timeline.mark(Stage.FORWARD)
    stream.work(4.0)
    timeline.mark(Stage.BACKWARD)
    stream.work(8.0)
    timeline.mark(END)
    (step,) = timeline.ready()
    return step


@pytest.mark.parametrize("index", [None, 0, 1])
def test_events_are_on_the_device_of_the_fit_whichever_is_current(streams, index):
    streams.current = 1  # at the start, which counts for a place without a number
    timeline = Cuda(torch.device("cuda", index)).timing().timeline
    for streams.current in (0, 1):
        step = a_step(timeline, streams.streams[1 if index is None else index])
        assert (step[Stage.FORWARD], step[Stage.BACKWARD]) == (4.0, 8.0)


def test_the_stream_is_looked_up_once_in_a_step(streams):
    timeline = Cuda(torch.device("cuda:0")).timing().timeline
    a_step(timeline, streams.streams[0])
    before = streams.asked_for_stream
    a_step(timeline, streams.streams[0])
    assert streams.asked_for_stream == before + 1


def test_a_wait_on_another_stream_stays_in_its_stage(streams):
    timeline = Cuda(torch.device("cuda:0")).timing().timeline
    main, gathering = streams.streams[0], FakeStream(lambda: math.inf)
    timeline.mark(Stage.FORWARD)
    main.work(1.0)
    streams.streams[0] = gathering  # as FSDP gathers parameters, ahead of the computation
    timeline.mark(WAIT)
    gathering.work(4.0)
    timeline.mark(BACK)
    streams.streams[0] = main
    main.work(2.0)
    timeline.mark(WAIT)
    main.work(0.5)
    timeline.mark(BACK)
    timeline.mark(END)
    (step,) = timeline.ready()
    assert (step[Stage.FORWARD], step[Stage.COMMUNICATION]) == (3.0, 0.5)


@pytest.mark.parametrize("current_stream", [None, lambda: 1 / 0, lambda place: object()])
def test_incomparable_streams_are_taken_for_the_same(streams, monkeypatch, current_stream):
    monkeypatch.setattr(streams, "current_stream", current_stream)
    timeline = Cuda(torch.device("cuda:0")).timing().timeline
    for mark in (Stage.FORWARD, WAIT, BACK, END):
        timeline.mark(mark)
        streams.streams[0].work(1.0)
    (step,) = timeline.ready()
    assert (step[Stage.FORWARD], step[Stage.COMMUNICATION]) == (2.0, 1.0)


def test_a_capture_at_the_start_is_left_alone(streams):
    streams.is_current_stream_capturing = lambda: True
    for stream in streams.streams:
        stream.capturing = True
    timing = Cuda(torch.device("cuda:0")).timing()
    assert timing.unstaged is None
    timing.timeline.mark(Stage.FORWARD)
    timing.timeline.mark(END)
    assert timing.timeline.ready() == []
    streams.is_current_stream_capturing = lambda: False


@pytest.mark.parametrize(("kind", "timed"), [("cuda", True), ("xpu", False)])
def test_a_gpu_that_is_busy_at_the_start_is_timed(streams, monkeypatch, kind, timed):
    now = iter(range(1000))
    monkeypatch.setattr(event_timeline, "monotonic", lambda: float(next(now)))
    monkeypatch.setattr(event_timeline, "sleep", lambda _: None)
    streams.streams[0].clock = None  # ranks wait for rank 0, whose host reads the weights
    timing = device.device_at(torch.device(kind, 0)).timing()
    assert (timing.timeline is not None) == timed
    assert (timing.unstaged is None) == timed


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (None, "nonsense can't be timed: its events fail: RuntimeError: meta backend doesn't support events."),
        (lambda **_: 1 / 0, "nonsense can't be timed: its events fail: ZeroDivisionError: division by zero"),
    ],
)
def test_a_device_without_usable_events_has_no_stages_and_a_reason(monkeypatch, event, why):
    monkeypatch.setattr(Device, "module", SimpleNamespace(Event=event))
    nonsense = Device(torch.device("meta"))
    nonsense.kind = "nonsense"
    assert nonsense.timing() == Timing(unstaged=why)


def test_a_question_that_fails_at_the_start_is_a_reason_too(streams):
    streams.is_current_stream_capturing = lambda: 1 / 0
    why = "cuda can't be timed: ZeroDivisionError: division by zero"
    assert Cuda(torch.device("cuda:0")).timing() == Timing(unstaged=why)


@pytest.mark.usefixtures("streams")
def test_a_kind_that_events_must_not_time_is_not_tried(monkeypatch):
    for kind, why in (
        (Mps, "reading an event of mps waits for the device"),
        (Xla, "xla only records operations, and computes them later"),
        (Hpu, "hpu may only record operations, and compute them later, unless PT_HPU_LAZY_MODE=0"),
    ):
        assert kind(torch.device(kind.__name__.lower())).timing() == Timing(unstaged=why)
    monkeypatch.setenv("PT_HPU_LAZY_MODE", "0")
    assert Hpu(torch.device("hpu:0")).timing().timeline is not None


def test_a_kind_without_a_class_is_any_accelerator():
    cpu, meta = [device.device_at(torch.device(kind)) for kind in ("cpu", "meta")]
    assert (cpu.name, cpu.timing(), cpu.allocator(), cpu.features()) == ("cpu", Timing(), None, Features())
    assert (type(meta), meta.name, meta.pinned_copies) == (Device, "meta", None)


@pytest.fixture
def gpu(monkeypatch):
    """Make a GPU of CUDA or ROCm by its facts."""

    def make(capability=(8, 0), hip=None, **facts):
        facts = {"multi_processor_count": 108, "uuid": "a-uuid"} | facts
        monkeypatch.setattr(torch.version, "hip", hip)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(**facts))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
        return device.device_at(torch.device("cuda:0"))

    return make


@each_row(
    ("capability", "half", "tensor_cores", "tf32"),
    [
        ((6, 0), None, False, False),  # P100
        ((7, 0), "fp16", True, False),  # V100
        ((7, 5), "fp16", True, False),  # T4
        ((8, 0), "bf16", True, True),  # A100
        ((9, 0), "bf16", True, True),  # H100
        ((12, 0), "bf16", True, True),  # RTX 5090
    ],
)
def test_nvidia_gpus_are_known_by_their_capability(gpu, capability, half, tensor_cores, tf32):
    nvidia = gpu(capability)
    assert type(nvidia) is Cuda
    assert nvidia.features() == Features(
        half=half, tensor_cores=tensor_cores, tf32=tf32, multiprocessors=108, uuid="a-uuid"
    )


@each_row(
    ("name", "half", "tf32"),
    [
        ("gfx906:sramecc+:xnack-", None, False),  # MI50
        ("gfx908:sramecc+:xnack-", "fp16", False),  # MI100
        ("gfx90a:sramecc+:xnack-", "bf16", False),  # MI250X
        ("gfx942:sramecc+:xnack-", "bf16", True),  # MI300X
        ("gfx950:sramecc+:xnack-", "bf16", False),  # MI355X
        ("gfx1100", None, False),  # Radeon
    ],
)
def test_amd_gpus_are_known_by_their_architecture(gpu, name, half, tf32):
    amd = gpu((9, 4), hip="6.4", gcnArchName=name)
    assert type(amd) is Rocm
    assert amd.features() == Features(half=half, tf32=tf32, multiprocessors=108, architecture=name.partition(":")[0])


@pytest.fixture
def matmul():
    """The settings of products on CUDA and ROCm."""
    before = torch.backends.cuda.matmul.allow_tf32
    yield torch.backends.cuda.matmul
    torch.backends.cuda.matmul.allow_tf32 = before


def test_tf32_needs_a_permission_and_a_device_that_has_it(gpu, matmul):
    for matmul.allow_tf32 in (True, False):
        allowed = [gpu(capability).multiplies_in_tf32() for capability in ((7, 5), (8, 0))]
        assert allowed == [False, matmul.allow_tf32]


def test_an_amd_gpu_uses_tf32_only_if_its_library_may(gpu, matmul, monkeypatch):
    matmul.allow_tf32 = True
    for allowed in (True, False):
        monkeypatch.setattr(torch._C, "_get_cublas_allow_tf32", lambda allowed=allowed: allowed)  # reads a variable
        assert gpu((9, 4), hip="6.4", gcnArchName="gfx942").multiplies_in_tf32() == allowed


def test_an_intel_gpu_is_known_by_its_matrix_engines(monkeypatch):
    capability = {"has_subgroup_matrix_multiply_accumulate": True}
    monkeypatch.setattr(torch.xpu, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda _: SimpleNamespace(max_compute_units=512))
    xpu = Xpu(torch.device("xpu:0"))
    assert xpu.features() == Features(half="bf16", multiprocessors=512)
    capability.clear()
    assert xpu.features() == Features(multiprocessors=512)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the test needs CUDA that refuses to start, and here CUDA starts")
def test_facts_of_a_gpu_that_does_not_start_are_unknown():
    gpu = Cuda(torch.device("cuda:0"))
    assert (gpu.features(), gpu.name, gpu.allocator(), gpu.captures) == (Features(), "cuda", None, False)
    assert gpu.timing().unstaged is not None


@pytest.mark.parametrize(
    ("kind", "blocking", "uncached", "expandable"),
    [
        (Cuda, "CUDA_LAUNCH_BLOCKING", "PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_CUDA_ALLOC_CONF"),
        (Rocm, "AMD_SERIALIZE_KERNEL", "PYTORCH_NO_HIP_MEMORY_CACHING", None),
        (Npu, "ASCEND_LAUNCH_BLOCKING", "PYTORCH_NO_NPU_MEMORY_CACHING", "PYTORCH_NPU_ALLOC_CONF"),
        (Xpu, None, None, None),
        (Device, None, None, None),
    ],
)
def test_variables_of_a_vendor(kind, blocking, uncached, expandable, monkeypatch):
    place = kind(torch.device("cuda:0"))
    setting = None if expandable is None else f"{expandable}=expandable_segments:True"
    for name in filter(None, (uncached, expandable)):
        monkeypatch.delenv(name, raising=False)
    for value, shown in (("0", None), ("1", blocking)) if blocking else ():
        monkeypatch.setenv(blocking, value)
        assert place.blocking == shown
    assert (place.blocking, place.uncached, place.expandable) == (blocking, None, setting)
    if uncached:
        monkeypatch.setenv(uncached, "1")
    if expandable:
        monkeypatch.setenv(expandable, "max_split_size_mb:64,expandable_segments:True")
    assert (place.uncached, place.expandable) == (uncached, None)


SIZES = {"allocated_bytes": {"current": 1, "peak": 3}, "reserved_bytes": {"current": 4, "peak": 5}}
NESTED = {name: {"all": sizes} for name, sizes in SIZES.items()} | {"num_alloc_retries": 2}
FLAT = {f"{name}.all.{time}": size for name, sizes in SIZES.items() for time, size in sizes.items()}
FLAT["num_alloc_retries"] = 2


def broken(_):
    raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats")


@each_row(
    ("module", "expected"),
    [
        ({"memory_stats": lambda _: FLAT}, Allocator(3, 4, 2, 1)),
        ({"memory_stats_as_nested_dict": lambda _: NESTED, "memory_stats": broken}, Allocator(3, 4, 2, 1)),
        ({"memory_stats": broken}, None),
        ({"memory_stats_as_nested_dict": broken}, None),
        ({"memory_stats": lambda _: {"InUse": 1}}, None),
        ({"memory_stats_as_nested_dict": lambda _: {}}, None),
        ({}, None),
    ],
)
def test_statistics_of_an_allocator_are_read_or_unknown(monkeypatch, module, expected):
    monkeypatch.setattr(Device, "module", SimpleNamespace(**module))
    assert Cuda(torch.device("cuda:0")).allocator() == expected


def test_graphs_that_are_captured_are_seen(monkeypatch):
    for capturing, manager, captures in ((True, None, True), (False, object(), True), (False, None, False)):
        trees = SimpleNamespace(get_manager=lambda _index, *, create_if_none_exists, manager=manager: manager)
        monkeypatch.setitem(sys.modules, "torch._inductor.cudagraph_trees", trees)
        module = SimpleNamespace(
            is_current_stream_capturing=lambda capturing=capturing: capturing, current_device=lambda: 0
        )
        monkeypatch.setattr(Device, "module", module)
        assert Cuda(torch.device("cuda")).captures is captures
        assert not Cpu(torch.device("cpu")).captures


def a_model(*places):
    return SimpleNamespace(parameters=lambda: [SimpleNamespace(device=torch.device(place)) for place in places])


@each_row(
    ("place", "parameters", "number", "expected"),
    [
        ("cuda:0", ["cuda:0", "cuda:1", "cuda:0"], 1, ["cuda:0", "cuda:1"]),
        ("cuda", ["cuda:0"], 1, ["cuda:0"]),
        ("cuda", [], 1, ["cuda"]),
        ("cuda:1", ["cuda:0"], 1, ["cuda:1", "cuda:0"]),
        ("cuda:0", ["cpu", "meta", "cuda:0"], 1, ["cuda:0"]),
        ("cuda:0", ["cuda:0"], 2, ["cuda:0", "cuda:1"]),
        ("cuda:1", ["cuda:1"], 2, ["cuda:1", "cuda:0"]),
        ("cuda:5", ["cuda:5"], 2, ["cuda:5"]),
        ("cuda", ["cuda:0"], 2, ["cuda:0", "cuda:1"]),
        ("cpu", ["cpu"], 1, ["cpu"]),
        ("cpu:0", ["cpu"], 1, ["cpu:0"]),
    ],
)
def test_devices_of_a_model_are_the_devices_of_its_parameters(place, parameters, number, expected):
    devices = device.of_model(a_model(*parameters), torch.device(place), number)
    assert [str(part.place) for part in devices] == expected


def test_allocators_of_several_devices_are_summed_up():
    first, second, unknown = [
        SimpleNamespace(allocator=lambda of=of: of) for of in (Allocator(1, 2, 3, 4), Allocator(10, 20, 30, 40), None)
    ]
    assert device.allocators([first, second]) == Allocator(11, 22, 33, 44)
    assert device.allocators([first, unknown]) is None


def test_only_a_device_in_use_is_waited_for(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    for started in (True, False):
        waits = []
        module = SimpleNamespace(is_initialized=lambda started=started: started, synchronize=partial(waits.append, 1))
        monkeypatch.setattr(Device, "module", module)
        device.synchronize()
        assert bool(waits) == started
