"""Whatever is measured: what fits, shares of ranks, and texts of failed allocations."""

from itertools import accumulate

from hypothesis import given, strategies as st

from perf_callbacks.kernel.records.machine_records import Memory, OutOfMemory
from perf_callbacks.memory.estimate import SHARDED, SimulatedStep, largest, on_rank
from perf_callbacks.memory.out_of_memory_text import lines

STEP = SimulatedStep(
    parts=Memory(step=2, device="cpu", activations_gb=3.0, peak_gb=24.0),
    passes=((6 * 10**9, 10**9), (0, 4 * 10**9)),
    optimizer_temporary=2 * 10**9,
    weights=6 * 10**9,
    gradients=6 * 10**9,
    optimizer=12 * 10**9,
)
"""Four layers of 1 GB, and 2 GB of weights outside of these."""


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=60).map(lambda steps: [*accumulate(steps)]),
    st.floats(-1, 1e8),
    st.integers(-5, 300),
    st.integers(0, 200),
)
def test_the_largest_number_is_found_from_any_guess(sizes, limit, guess, most):
    def size(number):
        return sizes[min(number, len(sizes)) - 1]

    fitting = [number for number in range(1, most + 1) if size(number) <= limit]
    assert largest(size, limit, guess, most) == max(fitting, default=0)


@given(st.sampled_from([*SHARDED]), st.integers(1, 64))
def test_more_ranks_need_no_more_memory(sharding, ranks):
    first, second = [on_rank(STEP, number, sharding, 4, 10**9)["peak"] for number in (ranks, ranks + 1)]
    assert second <= first + 1e-9 or (ranks == 1 and sharding in {"ddp", "zero3", "fsdp"})


@given(st.builds(OutOfMemory, step=st.integers(0), device=st.just("cpu"), error=st.text(max_size=9)))
def test_any_report_has_a_text(report):
    assert all(lines(report, rank=0))
