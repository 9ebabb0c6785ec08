"""Laws of the choice of CPUs, over machines and masks of any kind."""

from hypothesis import given, strategies as st

from perf_callbacks.kernel.process.cpu_sets import CpuFacts, Gpu, Machine, choose, parse, ranges

MODES = st.sampled_from(["auto", "node"])


@st.composite
def machines(draw):
    """CPUs in any order on nodes of any size, some without CPUs."""
    sizes = draw(st.lists(st.integers(0, 12), min_size=1, max_size=6))
    cpus = iter(draw(st.permutations(range(sum(sizes)))))
    nodes = {node: frozenset(next(cpus) for _ in range(size)) for node, size in enumerate(sizes) if size}
    return Machine(nodes=nodes)


@st.composite
def jobs(draw):
    """Facts of all ranks of a machine, one on each of its first devices, which are at any nodes."""
    machine = draw(machines())
    online = sorted(frozenset().union(*machine.nodes.values()))
    mask = draw(st.sets(st.sampled_from(online), min_size=1)) if online else {0}
    where = draw(st.lists(st.one_of(st.none(), st.integers(0, 6)), max_size=6))
    size = draw(st.integers(1, 8))
    common = {"mask": frozenset(mask), "machine": machine, "local_world_size": size}
    ranks = []
    for rank in range(size):
        gpu = None
        if where:
            shown = [*machine.nodes] * len(where) if len(machine.nodes) == 1 else where
            gpu = Gpu(pci="gpu", node=shown[rank % len(where)])
        ranks.append(CpuFacts(**common, gpu=gpu, local_rank=rank))
    return ranks


@given(MODES, jobs())
def test_a_choice_is_never_wider_than_the_mask(mode, ranks):
    for facts in ranks:
        choice = choose(mode, facts)
        assert choice.why
        assert choice.cpus is None or choice.cpus <= facts.mask


@given(MODES, jobs())
def test_a_choice_is_empty_only_if_none_of_the_right_cpus_is_allowed(mode, ranks):
    for facts in ranks:
        if choose(mode, facts).cpus == frozenset():
            near = facts.machine.nodes[facts.gpu.node]
            assert not facts.mask & near


@given(st.sets(st.integers(0, 300)))
def test_ranges_of_cpus_survive_a_round_trip(cpus):
    assert parse(ranges(cpus)) == cpus
