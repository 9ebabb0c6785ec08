"""However fits overlap, the masks of threads are narrow while they last and as they were found afterwards."""

from hypothesis import given, strategies as st

from perf_callbacks.kernel.process.cpu_masks import Affinity

CPUS = st.frozensets(st.integers(0, 5), min_size=1)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("bind"), st.integers(0, 3), CPUS),
        st.tuples(st.just("end"), st.integers(0, 3), st.none()),
        st.tuples(st.just("born"), st.integers(1, 3), st.none()),
        st.tuples(st.just("dies"), st.integers(2, 9), st.none()),
    ),
    max_size=30,
)


class Fit:
    """A fit."""


FITS = [Fit() for _ in range(4)]


class Threads:
    def __init__(self, masks):
        self.masks = dict(enumerate(masks, 1))

    def all(self):
        return [*self.masks]

    def get(self, thread):
        return self.masks[thread]

    def set(self, thread, cpus):
        assert cpus
        self.masks[thread] = frozenset(cpus)


@given(st.lists(CPUS, min_size=1, max_size=4), EVENTS)
def test_any_order_of_fits_and_threads_restores_the_world(masks, events):
    threads = Threads(masks)
    affinity = Affinity(threads)
    found, pinned = masks[0], {thread: mask for thread, mask in threads.masks.items() if mask != masks[0]}
    bound = set()
    for number, (kind, subject, cpus) in enumerate(events):
        if kind == "bind":
            affinity.bind(FITS[subject], cpus)
            bound.add(subject)
        elif kind == "end":
            affinity.let_go(FITS[subject])
            bound.discard(subject)
        elif kind == "born" and subject in threads.masks and subject not in pinned:
            threads.masks[100 + number] = threads.masks[subject]
        elif kind == "dies" and subject not in pinned:
            threads.masks.pop(subject, None)
        ours = {mask for thread, mask in threads.masks.items() if thread not in pinned}
        assert len(ours) == 1
        assert next(iter(ours)) <= found
        assert affinity.found == found
        assert bound or ours == {found}
        assert {thread: threads.masks[thread] for thread in pinned} == pinned
    for fit in bound:
        affinity.let_go(FITS[fit])
    assert {mask for thread, mask in threads.masks.items() if thread not in pinned} == {found}
