"""Laws of the choice of CPUs, over machines and masks of any kind."""

from hypothesis import given, strategies as st

from perf_callbacks.kernel.process.cpu_sets import CpuFacts, Gpu, Machine, choose, parse, ranges

MODES = st.sampled_from(["auto", "node", "socket", "exclusive"])


@st.composite
def machines(draw):
    """CPUs in any order on nodes of any size, some without CPUs; cores within a node; sockets of several nodes."""
    sizes = draw(st.lists(st.integers(0, 6), min_size=1, max_size=6))
    threads = draw(st.integers(1, 2))
    ids = iter(draw(st.permutations(range(threads * sum(sizes)))))
    nodes, cores = {}, []
    for node, size in enumerate(sizes):
        own = [frozenset(next(ids) for _ in range(threads)) for _ in range(size)]
        cores += own
        if own:
            nodes[node] = frozenset().union(*own)
    cut = draw(st.integers(0, len(sizes)))
    sides = [[cpus for node, cpus in nodes.items() if (node < cut) is side] for side in (True, False)]
    sockets = tuple(frozenset().union(*side) for side in sides if side)
    return Machine(nodes=nodes, sockets=sockets, cores=tuple(draw(st.sampled_from([cores, []]))))


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
            node = shown[rank % len(where)]
            peers = [device for device, other in enumerate(shown) if other == node]
            slot = (peers.index(rank % len(where)), len(peers)) if size <= len(where) else None
            gpu = Gpu(pci="gpu", node=node, slot=slot)
        ranks.append(CpuFacts(**common, gpu=gpu, local_rank=rank))
    return ranks


@given(MODES, jobs())
def test_a_choice_is_never_wider_than_the_mask(mode, ranks):
    for facts in ranks:
        found = choose(mode, facts)
        assert found.why
        assert found.cpus is None or found.cpus <= facts.mask


@given(MODES, jobs())
def test_a_choice_is_empty_only_if_none_of_the_right_cpus_is_allowed(mode, ranks):
    for facts in ranks:
        if choose(mode, facts).cpus == frozenset():
            near = facts.machine.nodes[facts.gpu.node]
            assert not facts.mask & near


@given(jobs())
def test_ranks_on_their_own_cores_never_share_one(ranks):
    chosen = [choose("exclusive", facts).cpus or frozenset() for facts in ranks]
    cores = [[core for core in facts.machine.cores if core & cpus] for facts, cpus in zip(ranks, chosen, strict=True)]
    assert sum(map(len, chosen)) == len(frozenset().union(*chosen))
    assert sum(map(len, chosen)) <= len(ranks[0].mask)
    assert sum(map(len, cores)) == len({core for own in cores for core in own})


@given(jobs())
def test_a_rank_on_cores_of_its_own_stays_on_its_node(ranks):
    for facts in ranks:
        alone, node = choose("exclusive", facts).cpus, choose("node", facts).cpus
        if facts.gpu is not None and alone and node is not None:
            assert alone <= node


@given(st.sets(st.integers(0, 300)))
def test_ranges_of_cpus_survive_a_round_trip(cpus):
    assert parse(ranges(cpus)) == cpus
