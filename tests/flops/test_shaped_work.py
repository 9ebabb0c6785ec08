"""What a batch of another shape takes: looked up, scaled where counts confirm it, and else unknown."""

import pytest
from rows import each_row

from perf_callbacks.flops.by_shape.shape_counts import extent
from perf_callbacks.flops.by_shape.shaped_work import ShapedWork
from perf_callbacks.flops.work import Work, WorkKey
from perf_callbacks.kernel.engine.marks import Calls
from perf_callbacks.kernel.engine.steps import StepFlops, Totals

LINEAR = WorkKey("forward", "float32", "matmul")
BACK = WorkKey("backward", "float32", "matmul")
SCORES = WorkKey("forward", "float32", "attention")
CONVOLVED = WorkKey("forward", "float32", "convolution")
AGAIN = WorkKey("recompute", "float32", "matmul")
UPDATE = WorkKey("optimizer", "float32", "matmul")


def ids(rows, length):
    return (("input_ids", (rows, length)), ("attention_mask", (rows, length)), ("labels", (rows, length)))


def images(rows, side=8):
    return (("pixel_values", (rows, 3, side, side)), ("labels", (rows,)))


def transformer(rows, length):
    return Work({LINEAR: 10 * rows * length, BACK: 20 * rows * length, SCORES: 4 * rows * length**2})


def learned(work=transformer, of=ids, *sizes, trained=None):
    shaped = ShapedWork(trained=trained)
    for size in sizes:
        shaped.learn([of(*size)], [work(*size)])
    return shaped


def test_a_step_is_the_sum_of_its_batches_and_of_the_optimizer():
    def with_optimizer(rows, length):
        return Work({**transformer(rows, length).cells, UPDATE: 7})

    shaped = learned(with_optimizer, ids, (2, 8), (4, 16))
    both = transformer(2, 8).model_flops + transformer(4, 16).model_flops
    assert shaped.step_flops([ids(2, 8), ids(4, 16)]) == StepFlops(both, both + 7)
    assert shaped.step_flops([ids(2, 8), images(2)]) is None


def test_work_that_does_not_depend_on_rows_is_not_taken_for_that_of_a_row():
    def with_a_rest(rows, _):
        return Work({LINEAR: 10 * rows + 3})

    shaped = learned(with_a_rest, ids, (1, 8), (2, 8))
    assert shaped.step_flops([ids(4, 8)]) is None
    shaped.learn([ids(3, 8)], [with_a_rest(3, 8)])
    assert shaped.step_flops([ids(4, 8)]).model_flops == 43
    assert shaped.step_flops([ids(4, 9)]) is None


@pytest.mark.parametrize("counted", [[(2, 8), (2, 16), (5, 12)], [(2, 8), (5, 8), (5, 12)], [(2, 8), (5, 8), (5, 8)]])
def test_two_numbers_of_rows_tell_nothing_of_a_third_with_fixed_work(counted):
    shaped = learned(lambda rows, length: Work({LINEAR: 3 * rows * rows * length}), ids, *counted)
    assert shaped.step_flops([ids(3, 10)]) is None


def test_as_many_tokens_each_time_tell_nothing_of_more():
    """What never grows looks then as what grows with tokens."""

    def merged(rows, length):
        return Work({LINEAR: 10 * rows * length + 500})

    shaped = learned(merged, ids, (2, 64), (4, 32), (8, 16))
    assert shaped.step_flops([ids(3, 16)]) is None
    assert shaped.step_flops([ids(16, 8)]).model_flops == merged(16, 8).model_flops
    assert learned(transformer, ids, (2, 64), (4, 32), (8, 16)).step_flops([ids(3, 16)]) is None


def test_a_law_that_a_count_of_other_rows_contradicts_is_given_up():
    def chunked(rows, length):
        return Work({LINEAR: 10 * rows * (-(-length // 8) * 8)})

    shaped = learned(chunked, ids, (2, 8), (2, 16))
    shaped.learn([ids(3, 5)], [chunked(3, 5)])
    assert shaped.step_flops([ids(2, 5)]) is None


@pytest.mark.parametrize("padding", [1, 3])
def test_a_convolution_that_pads_is_scaled_over_rows_and_never_over_length(padding):
    def convolved(rows, length):
        return Work({CONVOLVED: 6 * rows * (length + padding), LINEAR: 10 * rows * length})

    shaped = learned(convolved, ids, *[(2, length) for length in range(4, 20, 2)])
    assert shaped.step_flops([ids(2, 5)]) is None
    shaped.learn([ids(3, 8)], [convolved(3, 8)])
    assert shaped.step_flops([ids(7, 8)]).model_flops == convolved(7, 8).model_flops


def test_work_that_grows_in_jumps_stays_unknown_between_them():
    def chunked(rows, length):
        return Work({LINEAR: 10 * rows * (-(-length // 8) * 8)})

    shaped = learned(chunked, ids, (2, 5), (2, 9), (2, 17))
    assert shaped.step_flops([ids(2, 12)]) is None
    assert shaped.step_flops([ids(2, 9)]).model_flops == chunked(2, 9).model_flops


def packed(sequences, length):
    """As padding-free collators make it: one row, and where sequences begin."""
    return (("input_ids", (1, length)), ("position_ids", (1, length)), ("cu_seq_lens_q", (sequences + 1,)))


def test_packed_rows_scale_however_many_sequences_are_in_them():
    def work(_, length):
        return Work({LINEAR: 10 * length - 6, SCORES: 4 * length**2})

    shaped = learned(work, packed, (4, 120), (7, 124), (5, 119))
    assert shaped.step_flops([packed(9, 100)]).model_flops == work(9, 100).model_flops


def both(rows, length, other):
    return (("input_ids", (rows, length)), ("labels", (rows, other)))


def translation(rows, length, other):
    crossed = 4 * length**2 + 12 * other**2 + 8 * length * other
    return Work({LINEAR: rows * (10 * length + 30 * other), SCORES: rows * crossed})


def test_an_encoder_and_a_decoder_have_a_length_each():
    shaped = ShapedWork()
    sizes = [(2, 8, 5), (4, 16, 7), (3, 11, 20), (2, 9, 9), (5, 30, 4)]
    for size in sizes:
        effort = shaped.step_flops([both(7, 13, 17)])
        assert effort is None or effort.model_flops == translation(7, 13, 17).model_flops
        shaped.learn([both(*size)], [translation(*size)])
    assert shaped.step_flops([both(7, 13, 17)]).model_flops == translation(7, 13, 17).model_flops
    assert shaped.step_flops([both(1, 6, 6)]).model_flops == translation(1, 6, 6).model_flops


def test_a_second_length_that_never_differed_tells_of_no_other():
    shaped = ShapedWork()
    for size in [(2, 8, 8), (4, 16, 16), (3, 11, 11)]:
        shaped.learn([both(*size)], [transformer(size[0], size[1])])
    assert shaped.step_flops([both(5, 20, 20)]).model_flops == transformer(5, 20).model_flops
    assert shaped.step_flops([both(5, 20, 10)]) is None


def test_at_most_32_counts_are_kept_and_contradicted_ones_are_given_up():
    shaped = ShapedWork()
    for length in range(2, 400, 2):
        shaped.learn([ids(2, length)], [Work({LINEAR: length * (1 + length % 3)})])
    assert shaped.step_flops([ids(2, 398)]) is not None
    assert shaped.step_flops([ids(2, 2)]) is None
    assert not shaped.wants(ids(2, 3))


def test_an_unread_shape_is_neither_learned_nor_wanted():
    shaped = ShapedWork()
    shaped.learn([(), ids(2, 8)], [Work({LINEAR: 5}), Work({LINEAR: 5})])
    assert shaped.step_flops([()]) is shaped.step_flops([(), ids(2, 8)]) is shaped.step_flops([ids(2, 8)]) is None
    assert not shaped.wants(())


def test_other_calls_and_other_trained_parameters_are_counted_apart():
    trained = [(True, False)]
    shaped = ShapedWork(trained=lambda: trained[-1])
    shaped.look()
    shaped.learn([ids(2, 8)] * 2, [Work({LINEAR: 100})] * 2, Calls(2, 2))
    assert shaped.step_flops([ids(2, 8)] * 3, Calls(3, 3)) == StepFlops(300, 300)
    assert shaped.step_flops([ids(2, 8)] * 2, Calls(4, 2)) is None
    assert shaped.uncounted_calls == {(2, 1): (0, 0)}
    trained.append((True, True))
    shaped.look()
    assert shaped.step_flops([ids(2, 8)], Calls(1, 1)) is None
    assert shaped.has_no_count
    shaped.settle()
    shaped.learn([ids(2, 8)], [Work({LINEAR: 150})], Calls(1, 1))
    assert shaped.step_flops([ids(2, 8)], Calls(1, 1)) == StepFlops(150, 150)
    trained.append((True, False))
    shaped.look()
    shaped.settle()
    assert shaped.step_flops([ids(2, 8)], Calls(1, 1)) == StepFlops(100, 100)


@pytest.mark.parametrize(("second", "varies"), [(100, False), (100.9, False), (102, True), (50, True)])
def test_equal_batches_whose_counts_differ_by_over_a_hundredth_are_unknown(second, varies):
    shaped = ShapedWork()
    shaped.learn([ids(2, 8)], [Work({LINEAR: 1000})], step=2)
    shaped.learn([ids(2, 8)], [Work({LINEAR: int(10 * second)})], step=10)
    assert shaped.varies is varies
    assert (shaped.step_flops([ids(2, 8)]) is None) is varies


def test_batches_of_which_only_some_have_products_are_unknown():
    shaped = ShapedWork()
    shaped.learn([ids(2, 8)], [Work({LINEAR: 1000})], Calls(1, 0), step=2)
    shaped.learn([ids(2, 8)], [Work()], Calls(1, 0), step=10)
    assert shaped.unknowns.varies == "the work of equal batches varies (some have none; counts at steps 2 and 10)"


def test_a_family_has_the_same_tensors():
    shaped = learned(transformer, ids, (2, 8), (5, 16), (3, 4))
    assert shaped.step_flops([ids(2, 9)]) is not None
    assert shaped.step_flops([(("input_ids", (2, 9)),)]) is None
    assert shaped.step_flops([(*ids(2, 9), ("weights", (2,)))]) is None


def test_batches_that_are_alike_share_the_count_of_a_pass():
    shaped = ShapedWork()
    shaped.learn([ids(2, 8)] * 4, [Work({LINEAR: 400, BACK: 800})])
    assert shaped.step_flops([ids(2, 8)]) == StepFlops(300, 300)
    assert shaped.step_flops([ids(2, 8)] * 3) == StepFlops(900, 900)


def test_work_that_can_not_be_shared_is_known_of_such_a_step_alone():
    shaped = ShapedWork()
    batches = [ids(2, 8), ids(3, 12)]
    shaped.learn(batches, [Work({LINEAR: 401})])
    assert shaped.step_flops(batches) == shaped.step_flops(batches[::-1]) == StepFlops(401, 401)
    assert [shaped.step_flops([batch]) for batch in batches] == [None, None]
    shaped.learn([ids(2, 8)] * 2, [Work({LINEAR: 401})])
    assert shaped.step_flops([ids(2, 8)] * 2) == StepFlops(401, 401)
    assert shaped.step_flops([ids(2, 8)]) is None


def test_batches_of_equal_shape_with_different_work_are_not_alike():
    shaped = ShapedWork()
    shaped.learn([ids(2, 8)] * 2, [Work({LINEAR: 100}), Work({LINEAR: 102})])
    assert shaped.step_flops([ids(2, 8)] * 2) == StepFlops(202, 202)
    assert shaped.step_flops([ids(2, 8)]) is None


def test_a_sort_of_work_that_only_some_shapes_have_is_not_scaled():
    def longer(rows, length):
        return Work({**transformer(rows, length).cells, **({AGAIN: 5} if length > 10 else {})})

    shaped = learned(longer, ids, (2, 8), (2, 16), (2, 24))
    assert shaped.step_flops([ids(2, 5)]) is None


@each_row(
    ("shape", "expected"),
    [
        (ids(4, 16), (4, 16)),
        (images(4), (4, 3)),
        ((("images", (4, 3)), ("text.input_ids", (8, 16))), (8, 16)),
        ((("scale", ()), ("x", (6,))), (6, 0)),
        ((), (0, 0)),
        ((("x", ()),), (0, 0)),
    ],
)
def test_the_extent_of_a_batch_is_that_of_its_token_ids_or_first_tensor(shape, expected):
    assert extent(shape) == expected


def test_the_cause_of_an_unknown_step_is_told():
    """Each after one count of text, and one of two batches with three calls."""
    causes = {
        ((ids(2, 8),), Calls(2, 1)): "forward and backward ran in an order that was not counted",
        ((ids(2, 8), images(2)), Calls(2, 1)): "batches differ in shape and in their calls of the model",
        ((images(2),), Calls(1, 1)): "batches have shapes that were not counted and don't scale",
        (((),), Calls(1, 1)): "the shapes of its batches can't be read",
        ((ids(2, 8),), Calls(1, 1)): "the trained parameters changed in some steps",
    }
    totals = Totals()
    totals.steps, totals.effort_steps = 4, 3
    for (shapes, calls), cause in causes.items():
        trained = [(True,)]
        shaped = learned(transformer, ids, (2, 8), trained=lambda: trained[0])  # noqa: B023 called here
        if "differ" in cause:
            shaped.learn([ids(2, 8)] * 2, [Work({LINEAR: 300})], calls)
            assert shaped.step_flops([ids(2, 8)] * 2, calls).model_flops == 300
            shaped.learn(shapes, [Work({LINEAR: 400})], calls)
        if "trained" in cause:
            shaped.look(4)
            trained[0] = (False,)
            shaped.look(5)
        assert shaped.step_flops(shapes, calls, 5) is None
        assert shaped.summary(totals, {}).unknown == f"known for 3 of 4 steps: {cause}"
