"""Laws of what ranks did, put together."""

from array import array
from dataclasses import replace

from hypothesis import given, settings, strategies as st
from jobs.parts import combine

from perf_callbacks.kernel.engine.resources import RESOURCES
from perf_callbacks.kernel.engine.windows import JobSettings, Part, rates
from perf_callbacks.kernel.records.codec import pack, unpack
from perf_callbacks.kernel.records.fit_records import Window
from perf_callbacks.ranks.bundles import Bundle, Combination, bundled
from perf_callbacks.ranks.packed_parts import bundle_again, pack_bundle, unpack_bundles

COUNTS = st.integers(0, 2**40)
MAYBE = st.none() | COUNTS
SECONDS = st.floats(0, 1e6)
AMOUNTS = ("samples", "tokens", "useful_tokens")
NAMES = st.text(max_size=12)
FIT = bytes(range(16))
PARTS = st.builds(
    Part,
    window=COUNTS,
    length=st.integers(50, 1000),
    rank=st.integers(0, 7),
    world_size=st.just(8),
    data_parallel=st.sampled_from([1, 2, 4, 8]),
    steps=st.integers(0, 50),
    seconds=SECONDS,
    samples=MAYBE,
    tokens=MAYBE,
    useful_tokens=MAYBE,
)

PART = Part(
    window=0, length=50, rank=0, world_size=1, data_parallel=1, steps=50, seconds=1.0, samples=1, tokens=1,
    useful_tokens=1,
)  # fmt: skip


@st.composite
def jobs(draw):
    """One part of each rank; `together` ranks go through the same samples."""
    data_parallel, together = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    first = replace(draw(PARTS), world_size=data_parallel * together, data_parallel=data_parallel)
    first = replace(first, steps=max(1, first.steps))
    parts = []
    for _ in range(data_parallel):
        amounts = {name: draw(MAYBE) for name in AMOUNTS}
        parts += [
            replace(first, rank=len(parts) + number, seconds=draw(SECONDS), **amounts) for number in range(together)
        ]
    return parts, together


@given(jobs(), st.data(), st.randoms(use_true_random=False))
def test_a_window_is_the_sum_of_its_parts_and_of_each_rank_once(job, data, random):
    parts, together = job
    window = combine(parts)
    for name in AMOUNTS:
        amounts = [getattr(part, name) for part in parts[::together]]
        assert getattr(window, name) == (None if None in amounts else sum(amounts))
    assert window.seconds == max(part.seconds for part in parts)
    assert (window.ranks, window.steps) == (len(parts), parts[0].steps)
    assert window.last_step - window.first_step + 1 == parts[0].length
    assert combine(random.sample(parts, len(parts))) == window
    missing = data.draw(st.sampled_from(parts))
    assert combine([part for part in parts if part is not missing]) is None
    assert combine([*parts, missing]) is None
    assert unpack(Window, pack(window)) == window
    assert all(rate >= 0 for rate in rates(window).values())


@st.composite
def parts_with_signals(draw):
    """Parts of short windows that carry signals and all else."""
    part, length = draw(PARTS), draw(st.integers(50, 60))
    column = st.randoms(use_true_random=True).map(lambda chance: array("f", [chance.random() for _ in range(length)]))
    return replace(
        part,
        length=length,
        model_flops=draw(st.none() | st.integers(0, 2**127)),
        asks=draw(st.dictionaries(NAMES, COUNTS, max_size=4)),
        role=draw(st.dictionaries(NAMES, COUNTS, max_size=3)),
        signals=draw(st.dictionaries(NAMES, column, max_size=3)),
        resources=draw(st.dictionaries(st.sampled_from(RESOURCES), st.floats(0, 2**20, width=32))),
        attempt=draw(st.integers(0, 99)),
    )


@given(parts_with_signals(), st.data())
def test_parts_make_the_round_trip_and_torn_ones_are_nothing(part, data):
    bundle = Bundle.from_part(part)
    blob = pack_bundle(bundle, FIT)
    assert unpack_bundles(blob, FIT) == [bundle]
    assert bundle.signals() == {part.rank: part.signals}
    assert bundle.roles() == ({part.rank: part.role} if part.role else {})
    assert unpack_bundles(blob[: data.draw(st.integers(0, len(blob) - 1))], FIT) == []
    assert unpack_bundles(blob + blob, bytes(16)) == []


@given(jobs(), st.integers(1, 7))
def test_parts_may_be_bundled_and_combined_some_at_a_time(job, size):
    parts, _ = job
    combination = Combination()
    for start in range(0, len(parts), size):
        combination.add(bundled([Bundle.from_part(part) for part in parts[start : start + size]]))
    assert combination.window() == combine(parts)


@settings(max_examples=40)
@given(st.lists(parts_with_signals(), max_size=8, unique_by=lambda part: part.rank))
def test_ranks_come_out_of_bundles_as_they_went_in(parts):
    parts.sort(key=lambda part: part.rank)
    blob = b"".join([pack_bundle(Bundle.from_part(part), FIT) for part in parts])
    bundles = unpack_bundles(bundle_again(blob, FIT), FIT)
    signals = {rank: own for one in bundles for rank, own in one.signals().items()}
    assert signals == {part.rank: part.signals for part in parts}
    roles = {rank: role for one in bundles for rank, role in one.roles().items()}
    assert roles == {part.rank: part.role for part in parts if part.role}


@given(jobs(), st.data())
def test_a_window_without_some_ranks_names_them_and_has_no_amounts(job, data):
    parts, _ = job
    there = data.draw(st.sets(st.sampled_from(range(len(parts))), min_size=1))
    missing = [part.rank for part in parts if part.rank not in there]
    window = combine([part for part in parts if part.rank in there], missing)
    assert (window.missing, window.missing_ranks) == (len(missing), tuple(missing))
    assert window.seconds == max(part.seconds for part in parts if part.rank in there)
    assert not missing or [getattr(window, name) for name in AMOUNTS] == [None] * 3


@given(st.binary() | st.binary().map(lambda body: pack_bundle(Bundle.from_part(PART), FIT)[:12] + body))
def test_any_bytes_are_read_without_an_error(blob):
    assert unpack_bundles(blob, FIT) == []


@given(st.sampled_from([Window, JobSettings]), st.text() | st.binary().map(lambda line: line.decode(errors="replace")))
def test_any_line_is_read_without_an_error(kind, line):
    unpack(kind, line)
