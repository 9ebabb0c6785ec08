"""Whatever is counted, in whatever order: an answer is exactly right, or there is none."""

from operator import itemgetter

from hypothesis import given, strategies as st

from perf_callbacks.flops.by_shape.shaped_work import ShapedWork
from perf_callbacks.flops.work import Work, WorkKey
from perf_callbacks.kernel.engine.steps import StepFlops

factors = st.integers(0, 10**9)
rows_of = st.integers(1, 64)
sizes = st.tuples(rows_of, st.integers(1, 512))


@st.composite
def models(draw, *, angles=True):
    """Layers that see each token, a head that sees each row, attention over the length, a convolution.

    Angles of positions may be worked out once for all rows.
    """
    linear, head, attention, convolved = [draw(factors) for _ in range(4)]
    angle = draw(factors) if angles else 0

    def work(rows, length):
        return Work(
            {
                WorkKey("forward", "bfloat16", "matmul"): rows * (linear * length + head),
                WorkKey("backward", "bfloat16", "matmul"): 2 * rows * (linear * length + head),
                WorkKey("forward", "bfloat16", "attention"): rows * attention * length**2,
                WorkKey("recompute", "bfloat16", "attention"): rows * attention * length**2,
                WorkKey("forward", "float32", "convolution"): rows * convolved * length,
                WorkKey("forward", "float32", "attention"): rows * attention * length**2 + angle * length,
            }
        )

    return work


def shape(size):
    return (("input_ids", size), ("mask", (size[0], 1, size[1], size[1])), ("weight", (65, 7)))


def learned(work, counts):
    shaped = ShapedWork()
    for size in counts:
        shaped.learn([shape(size)], [work(*size)])
    return shaped


@given(models(), st.lists(sizes, max_size=6), st.lists(sizes, max_size=6))
def test_an_answer_is_exactly_right(work, counts, asked):
    shaped = learned(work, counts)
    for size in [*counts, *asked]:
        effort, true = shaped.step_flops([shape(size)]), work(*size)
        if effort is not None:
            assert effort == StepFlops(true.model_flops, true.hardware_flops)
        else:
            assert size not in counts


@given(models(), factors, st.integers(4, 9), st.lists(st.integers(0, 9), max_size=5), sizes)
def test_an_answer_is_right_where_batches_have_equal_tokens(work, once, budget, halvings, asked):
    """Weights that are put together in each forward take the same whatever the batch."""

    def with_weights(rows, length):
        return Work({**work(rows, length).cells, WorkKey("recompute", "bfloat16", "matmul"): rows * length + once})

    counts = [(2**halving, 2 ** (budget - halving)) for halving in halvings if halving <= budget]
    effort, true = learned(with_weights, counts).step_flops([shape(asked)]), with_weights(*asked)
    assert effort in {None, StepFlops(true.model_flops, true.hardware_flops)}


longer = st.tuples(st.integers(1, 64), st.integers(2, 512))  # a length of 1 looks like a dimension that is not there


@given(models(), st.lists(longer, min_size=4, max_size=6, unique_by=(itemgetter(0), itemgetter(1))), longer)
def test_four_counts_that_differ_in_everything_tell_of_any_other_shape(work, counts, asked):
    assert learned(work, counts).step_flops([shape(asked)]) is not None


@given(models(), st.lists(sizes, max_size=6, unique=True), st.data())
def test_the_order_of_counts_makes_no_difference(work, counts, data):
    asked = data.draw(st.lists(sizes, max_size=6))
    one, other = learned(work, counts), learned(work, data.draw(st.permutations(counts)))
    assert [one.step_flops([shape(size)]) for size in asked] == [other.step_flops([shape(size)]) for size in asked]


@given(models(), st.lists(sizes, min_size=1, max_size=6), st.lists(sizes, max_size=6))
def test_to_have_asked_before_makes_no_difference(work, counts, asked):
    curious = ShapedWork()
    for size in counts:
        for question in asked:
            curious.step_flops([shape(question)])
        curious.learn([shape(size)], [work(*size)])
    patient = learned(work, counts)
    assert [curious.step_flops([shape(size)]) for size in asked] == [
        patient.step_flops([shape(size)]) for size in asked
    ]


@given(
    models(angles=False),
    st.integers(1, 64),
    sizes.map(itemgetter(1)),
    st.lists(sizes.map(itemgetter(0)), max_size=5),
    st.integers(1, 64),
)
def test_where_only_rows_differ_two_counts_tell_of_any_number_of_them(work, rows, length, more, asked):
    counts = [(rows, length), *[(one, length) for one in more]]
    known = learned(work, counts).step_flops([shape((asked, length))])
    assert (known is not None) == (asked in {rows, *more} or len({rows, *more}) > 1)


@given(models(), st.integers(1, 8), st.lists(st.integers(1, 512), min_size=1, max_size=5), st.integers(1, 512))
def test_where_only_the_length_differs_nothing_is_said_of_other_rows(work, rows, lengths, asked):
    shaped = learned(work, [(rows, length) for length in lengths])
    assert shaped.step_flops([shape((rows + 1, asked))]) is None
    assert shaped.step_flops([shape((rows + 1, lengths[0]))]) is None


@given(st.dictionaries(sizes, factors, max_size=5), sizes)
def test_a_count_is_repeated_for_its_shape(counts, asked):
    cell = WorkKey("forward", "float32", "matmul")
    shaped = learned(lambda *size: Work({cell: counts[size]}), counts)
    for size, flops in counts.items():
        assert shaped.step_flops([shape(size)]) == StepFlops(flops, flops)
    assert (shaped.step_flops([shape(asked)]) is not None) == shaped.knows(shape(asked))


@given(models(), st.lists(sizes, min_size=1, max_size=5), st.randoms())
def test_a_step_of_several_batches_tells_as_much_as_each_alone(work, counts, random):
    together, alone = ShapedWork(), learned(work, counts)
    together.learn([shape(size) for size in counts], [work(*size) for size in counts])
    mixed = random.choices(counts, k=4)
    assert together.step_flops([shape(size) for size in mixed]) == alone.step_flops([shape(size) for size in mixed])


@given(st.lists(st.tuples(sizes, factors), min_size=1, max_size=4))
def test_a_batch_without_shape_is_never_learned(counts):
    shaped, cell = ShapedWork(), WorkKey("forward", "float32", "matmul")
    for _, flops in counts:
        shaped.learn([()], [Work({cell: flops})])
    assert not shaped.knows(())
    assert all(not shaped.knows(shape(size)) for size, _ in counts)
