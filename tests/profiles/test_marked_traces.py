"""Modules in traces with our marks, and FLOPs of operations by their shapes. Times in microseconds."""

import pytest
from kineto_events import BACKWARD, MAIN, annotation, kernel, launch, microseconds, operation, profile, step
from rows import each_row

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


def modules(*events):
    found = profile(step(1, 0, 5000), *events)
    return microseconds(found.module_seconds), microseconds(found.module_backward_seconds or {})


def test_the_innermost_mark_gives_the_path():
    events = [mark("", 0, 50), mark("layers.*", 2, 40), mark("layers.*.mlp", 4, 10)]
    found, backward = modules(*events, *work(1, 5, 7), *work(2, 20, 8), *work(3, 44, 9), *work(4, 60, 10))
    assert found == {"(no module)": 10, "": 9, "layers.*": 8, "layers.*.mlp": 7}
    assert backward == {}


def test_a_backward_belongs_to_the_module_of_its_forward():
    events = [
        mark("head", 0, 10),
        *work(1, 2, 10, sequence=5),
        *work(2, 20, 1, name="aten::add", sequence=6),
        node("MmBackward0", 100, 20, 5),
        *work(3, 102, 30, thread=BACKWARD),
        node("AddBackward0", 130, 20, 6),
        *work(4, 132, 3, thread=BACKWARD),
    ]
    assert modules(*events) == ({"head": 40, "(no module)": 4}, {"head": 30, "(no module)": 3})


def test_a_loss_with_the_next_number_does_not_belong_to_the_model():
    events = [
        mark("head", 0, 10),
        operation("aten::is_nonzero", 2, 1, sequence=7),  # makes no node
        *work(1, 20, 1, sequence=7),
        node("LossBackward0", 100, 20, 7),
        *work(2, 102, 2, thread=BACKWARD),
    ]
    assert modules(*events)[0] == {"(no module)": 3}


def test_the_numbers_of_recomputation_belong_to_its_thread():
    """A reentrant checkpoint: the thread of the backward makes nodes, whose numbers the main thread has used too."""
    events = [
        mark("head", 0, 10),
        *work(1, 2, 1, sequence=0),
        mark("layers.*", 20, 20),
        *work(2, 22, 2, sequence=9),
        node("CheckpointFunctionBackward", 100, 90, 9),
        mark("layers.*", 102, 30, thread=BACKWARD),
        *work(3, 104, 4, thread=BACKWARD, sequence=0),
        node("MmBackward0", 140, 20, 0),
        *work(4, 142, 8, thread=BACKWARD),
        node("MmBackward0", 200, 20, 0),
        *work(5, 202, 16, thread=BACKWARD),
    ]
    assert modules(*events) == ({"head": 17, "layers.*": 14}, {"head": 16, "layers.*": 12})


def test_the_optimizer_has_a_row_of_its_own():
    events = [mark("head", 0, 10), *work(1, 2, 5), annotation("Optimizer.step#AdamW.step", 50, 20), *work(2, 52, 6)]
    assert modules(*events)[0] == {"(optimizer)": 6, "head": 5}


def test_a_closure_of_the_optimizer_is_not_of_the_optimizer():
    """Lightning runs forward and backward within `optimizer.step`; on a CPU, in one thread."""
    found = profile(
        step(1, 0, 200),
        annotation("Optimizer.step#AdamW.step", 0, 150),
        mark("head", 5, 20),
        operation("aten::addmm", 10, 10, sequence=5),
        operation("aten::cross_entropy_loss", 30, 10, sequence=6),
        node("AddmmBackward0", 50, 20, 5, thread=MAIN),
        operation("aten::mm", 55, 10),
        operation("aten::_fused_adamw_", 100, 30),
    )
    assert microseconds(found.module_seconds) == {"(optimizer)": 30, "head": 30, "(no module)": 10}
    assert microseconds(found.module_backward_seconds) == {"head": 20}
    assert found.class_seconds["optimizer"] == pytest.approx(30e-6)


def test_the_lightest_of_many_modules_are_summed():
    events = [
        one for place in range(120) for one in (mark(f"m{place}x", 20 * place, 15), *work(place + 1, 20 * place, 9))
    ]
    found, _ = modules(*events)
    assert len(found) == MOST_MODULES + 1
    assert found["(others)"] == 9 * (120 - MOST_MODULES)


def test_without_marks_modules_are_unknown():
    found = profile(step(1, 0, 5000), *work(1, 5, 7))
    assert found.module_seconds is found.module_backward_seconds is None


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


def test_a_view_within_a_product_gets_no_flops():
    product = operation("aten::mm", 0, 10, shapes=[[2, 3], [3, 5]])
    found = profile(product, operation("aten::resolve_conj", 2, 7)).operations
    assert [(one.name, one.kind, one.flops) for one in found] == [
        ("aten::resolve_conj", "copy", None),
        ("aten::mm", "contraction", 60),
    ]
