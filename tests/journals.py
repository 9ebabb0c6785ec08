"""Small journals, as fits leave them."""

from html.parser import HTMLParser
from pathlib import Path

from fakes import a_run
from summaries import a_summary_of

from perf_callbacks.kernel.records.codec import Entry, encode
from perf_callbacks.kernel.records.fit_records import Checklist, Finding, Gc, Span, Steps
from perf_callbacks.kernel.records.flops_record import Flops
from perf_callbacks.kernel.records.machine_records import Memory, Use
from perf_callbacks.kernel.records.module_records import ModuleWork
from perf_callbacks.kernel.records.profile_record import Profile, ProfiledCopy, ProfiledOperation
from perf_callbacks.kernel.records.rank_records import Stall

FINDING = Finding(
    cause="data", share=0.25, evidence="Waiting for data took 25% of the run", remedy="DataLoader(num_workers=2)"
)

COUNT = Flops(
    step=2,
    model_flops=400,
    hardware_flops=500,
    by_phase={"forward": 150, "backward": 250, "recompute": 100},
    by_dtype={"bfloat16": 400},
    source="counted",
    coverage=0.5,
    uncounted={"mine::product": 3},
    lower_bound=True,
    products=(
        ("aten::mm", "[8, 64] x [64, 50257]", "bfloat16", 200),
        ("aten::mm", "[8, 64] x [64, 64]", "bfloat16", 100),
    ),
    modules=(
        ModuleWork(path="lm_head", forward_flops=100, backward_flops=200, activation_bytes=1024),
        ModuleWork(path="layers.*.mlp", modules=2, forward_flops=50, backward_flops=50, extra_flops=100, parameters=8),
        ModuleWork(path="(no module)", modules=0),
    ),
)


PROFILE = Profile(
    timeline="device",
    device="NVIDIA H100 80GB HBM3",
    steps=2,
    first_step=5,
    span_seconds=2.0,
    busy_seconds=1.0,
    idle_seconds={"data": 0.6, "sync": 0.4},
    class_seconds={"contraction": 0.75, "communication": 0.15, "copy": 0.1},
    communication_seconds=0.25,
    exposed_communication_seconds=0.15,
    kernels=512,
    sync_seconds={"train.py(40): log": 0.4},
    operations=(
        ProfiledOperation(
            name="aten::mm", kind="contraction", calls=8, seconds=0.75, shapes="8x64, 64x64", flops=600.0
        ),
        ProfiledOperation(name="ncclDevKernel_AllReduce", kind="communication", calls=2, seconds=0.15),
    ),
    flops=800.0,
    copies=(
        ProfiledCopy(kind="host to device", operation="aten::to", line="train.py(12): load", calls=2, seconds=0.1),
    ),
    module_seconds={"lm_head": 0.5, "layers.*.mlp": 0.2, "(optimizer)": 0.2, "": 0.1},
    module_backward_seconds={"lm_head": 0.3},
    trace="profile0-5.json.gz",
)


def steps(first, last, *, slow=None, seconds=0.25, **columns):
    """Steps first to last, of which one is slow for want of data."""
    numbers = tuple(range(first, last + 1))
    waits = tuple(1.0 if step == slow else 0.0625 for step in numbers)
    usual = {
        "step_time": tuple(wait + seconds - 0.0625 for wait in waits),
        "data_time": waits,
        "forward_time": (seconds / 4,) * len(numbers),
        "backward_time": (seconds / 2,) * len(numbers),
        "model_flops": (400,) * len(numbers),
    }
    return Steps(step=numbers, **usual | columns)


def a_summary(**changes):
    """The summary of a fit of 20 steps."""
    usual = {
        "run_id": "a1",
        "attempt": 1,
        "step": 20,
        "steps": 20,
        "included_steps": 18,
        "included_seconds": 4.5,
        "stage_seconds": {"data_time": 1.125, "forward_time": 1.125, "backward_time": 2.25},
        "wall_seconds": {"startup": 0.5, "first_step": 0.25, "steps": 5.0, "evaluation": 2.0},
        "samples": 80,
        "tokens": 640,
        "included_samples": 72,
        "included_tokens": 576,
        "included_useful_tokens": None,
        "model_flops": 7200,
        "hardware_flops": 9000,
        "flops_seconds": 4.5,
        "flops_steps": 18,
        "flops_dtype": "bfloat16",
        "peak_flops_per_second": 4000.0,
        "total_samples": 80,
        "total_tokens": 640,
        "gc_collections": (3, 0, 1),
        "gc_seconds": 0.25,
        "gc_longest": 0.125,
        "findings": (FINDING,),
    }
    return a_summary_of(**usual | changes)


def a_fit(rank=0, *, summary=True, **run):
    """The records of one rank: 20 steps with everything that may happen."""
    slow = 12 if rank == 1 else None
    records = [
        a_run(rank=rank, **run),
        Checklist(item="gc", status="applied", before="automatic", after="every 100 steps"),
        COUNT,
        steps(1, 10, excluded=("first", "counted", *[None] * 8)),
        Gc(step=4, stage="other", generation=2, start=0.9, seconds=0.125, collected=7, automatic=True),
        Span(kind="evaluation", step=10, start=2.5, seconds=2.0),
        *[Use(step=step, cpu_load=0.5, resident_gb=1.5) for step in (3, 6, 10)],
        Memory(
            step=2, device="cuda", source="allocator", weights_gb=2.0, gradients_gb=1.0, activations_gb=5.0, peak_gb=8.0
        ),
        steps(11, 20, slow=slow),
        Stall(step=15, rank=rank, stage="data", since_seconds=61.0, stack=("train.py:3 main", "loader.py:41 next")),
    ]
    if summary:
        records += [FINDING, a_summary()]
    return [Entry(float(place), record) for place, record in enumerate(records)]


def write(folder, *journals):
    """Write journals of ranks 0, 1 and so on, and return their directory."""
    directory = folder / "perf_callbacks"
    directory.mkdir(parents=True, exist_ok=True)
    for rank, journal in enumerate(journals):
        (directory / f"rank{rank}.jsonl").write_text("".join(encode(entry) + "\n" for entry in journal))
    return folder


def descriptors(path):
    """The file descriptors of this process that are open on a path."""
    return [int(link.name) for link in Path("/dev/fd").iterdir() if link.exists() and link.samefile(path)]


class Outline(HTMLParser):
    """The elements of a page, and the text of its data."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.data, self.inside, self.links = [], "", False, []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.inside = tag == "script" and ("id", "data") in attributes
        self.links += [value for name, value in attributes if name in {"src", "href"}]

    def handle_data(self, data):
        if self.inside:
            self.data += data

    def handle_endtag(self, tag):
        self.inside = False
