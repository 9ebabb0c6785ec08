"""Modules in traces with our marks, and FLOPs of operations by their shapes. Times in microseconds."""

from pathlib import Path

from kineto_events import BACKWARD, MAIN, annotation, kernel, launch, microseconds, operation, profile, step
from rows import each_row
from snapshots import matches

from perf_callbacks.profiles.reduction import MOST_MODULES


def mark(path, start, duration, **more):
    return operation(f"nn.Module: {path}", start, duration, **more)


def work(number, start, duration, *, thread=MAIN, name="aten::mm", sequence=None):
    """An operation with its kernel, which runs after the launch."""
    return [
        operation(name, start, 4, thread=thread, sequence=sequence),
        launch(number, start + 1, thread=thread),
        kernel("gemm", 100 * number, duration, number),
    ]


def node(name, start, duration, sequence, thread=BACKWARD):
    return operation(f"autograd::engine::evaluate_function: {name}", start, duration, thread=thread, sequence=sequence)


EVENTS = {
    "the innermost mark gives the path": [
        mark("", 0, 50), mark("layers.*", 2, 40), mark("layers.*.mlp", 4, 10),
        *work(1, 5, 7), *work(2, 20, 8), *work(3, 44, 9), *work(4, 60, 10),
    ],
    "a backward belongs to the module of its forward": [
        mark("head", 0, 10), *work(1, 2, 10, sequence=5), *work(2, 20, 1, name="aten::add", sequence=6),
        node("MmBackward0", 100, 20, 5), *work(3, 102, 30, thread=BACKWARD),
        node("AddBackward0", 130, 20, 6), *work(4, 132, 3, thread=BACKWARD),
    ],
    "a loss with the next number does not belong to the model": [
        mark("head", 0, 10), operation("aten::is_nonzero", 2, 1, sequence=7),  # makes no node
        *work(1, 20, 1, sequence=7), node("LossBackward0", 100, 20, 7), *work(2, 102, 2, thread=BACKWARD),
    ],
    # a reentrant checkpoint: the thread of the backward makes nodes, whose numbers the main thread has used too
    "the numbers of recomputation belong to its thread": [
        mark("head", 0, 10), *work(1, 2, 1, sequence=0), mark("layers.*", 20, 20), *work(2, 22, 2, sequence=9),
        node("CheckpointFunctionBackward", 100, 90, 9), mark("layers.*", 102, 30, thread=BACKWARD),
        *work(3, 104, 4, thread=BACKWARD, sequence=0), node("MmBackward0", 140, 20, 0),
        *work(4, 142, 8, thread=BACKWARD), node("MmBackward0", 200, 20, 0), *work(5, 202, 16, thread=BACKWARD),
    ],
    "the optimizer has a row of its own": [
        mark("head", 0, 10), *work(1, 2, 5), annotation("Optimizer.step#AdamW.step", 50, 20), *work(2, 52, 6),
    ],
    # Lightning runs forward and backward within `optimizer.step`; on a CPU, in a single thread
    "a closure of the optimizer is not of the optimizer": [
        annotation("Optimizer.step#AdamW.step", 0, 150), mark("head", 5, 20),
        operation("aten::addmm", 10, 10, sequence=5), operation("aten::cross_entropy_loss", 30, 10, sequence=6),
        node("AddmmBackward0", 50, 20, 5, thread=MAIN), operation("aten::mm", 55, 10),
        operation("aten::_fused_adamw_", 100, 30),
    ],
    "without marks modules are unknown": [*work(1, 5, 7)],
    "an operation with several kernels counts once": [
        operation("aten::mm", 0, 20, shapes=[[2, 3], [3, 5]]), launch(1, 1), kernel("gemm", 5, 10, 1),
        launch(2, 4), kernel("splitKreduce_kernel", 20, 2, 2),
        operation("aten::zero_", 8, 5), launch(3, 9), kernel("elementwise_fill", 30, 1, 3),
    ],
    # however long the thread pauses in it
    "a view within a product gets no flops": [
        operation("aten::mm", 0, 10, shapes=[[2, 3], [3, 5]]), operation("aten::resolve_conj", 2, 7),
    ],
}  # fmt: skip
"""By the law that it shows: the events of a trace."""


def test_modules_and_flops_are_as_their_snapshot():
    """`WRITE_SNAPSHOTS=1` writes it anew."""
    shown = ""
    for name, events in EVENTS.items():
        found = profile(step(1, 0, 5000), *events)
        sums = {"all": found.module_seconds, "backward": found.module_backward_seconds, "classes": found.class_seconds}
        shown += f"=== {name}: {found.flops} FLOPs\n"
        shown += "".join([f"{key}: {times and microseconds(times)}\n" for key, times in sums.items()])
        shown += "".join([f"{row.name}, {row.kind}: {row.flops} FLOPs\n" for row in found.operations])
    assert matches(Path(__file__).with_name("modules.txt"), shown)


def test_the_lightest_of_many_modules_are_summed():
    events = [[mark(f"m{place}x", 20 * place, 15), *work(place + 1, 20 * place, 9)] for place in range(120)]
    found = microseconds(profile(step(1, 0, 5000), *[event for group in events for event in group]).module_seconds)
    assert len(found) == MOST_MODULES + 1
    assert found["(others)"] == 9 * (120 - MOST_MODULES)


NO, YES, ONES = "False", "True", "[1, 1]"
IMAGE, WEIGHT = [2, 16, 8, 8], [32, 4, 3, 3]
QUERY, KEY, VALUE = [2, 4, 10, 8], [2, 4, 20, 8], [2, 4, 20, 6]
PAIRS = 2 * 4 * 10 * 20


@each_row(
    ("name", "shapes", "values", "flops"),
    [
        ("aten::mm", [[2, 3], [3, 5]], [], 60),
        ("aten::addmm", [[5], [2, 3], [3, 5]], [], 60),
        ("aten::bmm", [[7, 2, 3], [7, 3, 5]], [], 420),
        ("aten::mv", [[2, 3], [3]], [], 12),
        ("aten::convolution", [IMAGE, WEIGHT, []], ["", "", "", "[2, 2]", ONES, ONES, NO, "[0, 0]", "4"], 73_728),
        ("aten::convolution", [[2, 16, 4], [16, 8, 3], []], ["", "", "", "[2]", "[0]", "[1]", YES, "[0]", "1"], 6_144),
        (
            "aten::convolution_backward",
            [[2, 32, 4, 4], IMAGE, WEIGHT],
            ["", "", "", "[0]", "[2, 2]", ONES, ONES, NO, "[0, 0]", "4", "[True, True, False]"],
            147_456,
        ),
        ("aten::_scaled_dot_product_flash_attention", [QUERY, KEY, VALUE], [], 2 * PAIRS * 14),
        (
            "aten::_scaled_dot_product_flash_attention_backward",
            [QUERY, QUERY, KEY, VALUE],
            [],
            2 * PAIRS * (3 * 8 + 2 * 6),
        ),
        ("aten::mm", [], [], None),
        ("aten::mm", [[2, "x"], [3, 5]], [], None),
        ("aten::convolution", [IMAGE, WEIGHT, []], ["?"] * 9, None),
        ("aten::relu", [[2, 3]], [], None),
    ],
)
def test_flops_follow_from_shapes(name, shapes, values, flops):
    call = operation(name, 0, 10, shapes=shapes, external_id=1)
    call["args"]["Concrete Inputs"] = values
    found = profile(call, launch(1, 1), kernel("gemm", 5, 10, 1))
    assert (found.flops, found.operations[0].flops) == (flops, flops)
