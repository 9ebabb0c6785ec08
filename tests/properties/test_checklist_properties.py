"""Laws that hold for every item of the checklist."""

import pytest
import torch
from collector import FakeGc, put
from hypothesis import given, strategies as st
from torch.utils.data import DataLoader

from perf_callbacks import PerfConfig
from perf_callbacks.checklist import ITEMS
from perf_callbacks.garbage.item import FULL, YOUNG, due_between
from perf_callbacks.kernel.fit.environment import Environment
from perf_callbacks.kernel.fit.item import Batches, Fit
from perf_callbacks.kernel.process.cpu_sets import CpuFacts, Gpu, Machine, parse
from perf_callbacks.kernel.records.fit_records import Checklist

STATUSES = {"applied", "already so", "advised", "not applicable", "skipped", "failed"}
ENVIRONMENTS = st.builds(
    Environment,
    gc_enabled=st.booleans(),
    gc_thresholds=st.tuples(*[st.integers(0, 10**6)] * 3),
    gc_frozen=st.none() | st.integers(0, 10**9),
    gc_generational=st.booleans(),
    accelerator=st.none() | st.sampled_from(["cuda", "xpu", "mps"]),
    cpus=st.none() | st.integers(1, 1024),
    memory_available=st.none() | st.integers(0, 2**45),
    local_world_size=st.integers(1, 64),
    loaders_pin=st.none() | st.booleans(),
    copies_go_on=st.none() | st.booleans(),
    cpu_facts=st.none()
    | st.builds(
        CpuFacts,
        mask=st.frozensets(st.integers(0, 7), min_size=1),
        machine=st.just(Machine(nodes={0: parse("0-3"), 1: parse("4-7")})),
        gpu=st.none() | st.builds(Gpu, pci=st.just("0000:1b:00.0"), node=st.sampled_from([None, 0, 1, 2])),
        workers=st.integers(0, 4),
    ),
)
CONFIGS = st.builds(
    PerfConfig,
    gc=st.sampled_from(["sync", "freeze", "observe", "off"]),
    gc_interval=st.integers(1, 1000),
    loaders=st.sampled_from(["apply", "advise", "off"]),
    affinity=st.sampled_from(["auto", "node", "off"]),
)


def test_slugs_are_stable_and_differ():
    assert [item.slug for item in ITEMS] == ["gc", "loaders", "affinity"]


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.slug)
@given(environment=ENVIRONMENTS, config=CONFIGS)
def test_an_item_decides_by_its_facts_alone(item, environment, config):
    with pytest.MonkeyPatch.context() as monkeypatch:
        for enabled in (True, False):
            fake = put(monkeypatch, FakeGc(enabled=enabled))
            before = fake.state
            row = item.decide(environment, config)
            assert type(row) is Checklist
            assert (row.item, row.status in STATUSES - {"failed"}) == (item.slug, True)
            assert row == item.decide(environment, config)
            assert row.after if row.status == "applied" else row.why
            assert fake.state == before
            assert fake.collected == []


FINDS = st.builds(FakeGc, enabled=st.booleans(), frozen=st.sampled_from([0, 400, 9000]))


class Copier:
    """What a door may name: functions that make loaders ready, see batches, and copy them."""

    def process(self, loader):
        return loader

    def first(self, batch):
        return batch

    def copy(self, batch, device, *, non_blocking=False):
        return non_blocking


EVENTS = st.lists(
    st.sampled_from(["evaluation", "checkpoint", "span_ended", "step", "ended", "agreed", "others"]), max_size=60
)


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.slug)
@given(environment=ENVIRONMENTS, config=CONFIGS, fake=FINDS, events=EVENTS)
def test_events_in_any_order_leave_the_world_as_found(item, environment, config, fake, events):
    loader, later, copier = DataLoader(range(4)), DataLoader(range(4)), Copier()
    batches = Batches(
        loaders=(loader, None), process=(copier, "process"), first=(copier, "first"), copy=(copier, "copy")
    )
    with pytest.MonkeyPatch.context() as monkeypatch:
        before = put(monkeypatch, fake).state
        applied = item.apply(Fit(config=config, environment=environment, step=0, memory=dict, batches=batches))
        assert copier.process(later) is later
        for step, event in enumerate(events, 1):
            assert copier.first(step) is step
            assert copier.copy([torch.ones(1)], "cpu") is False
            if event in {"evaluation", "checkpoint"}:
                applied.span_began(event, step)
            elif event == "span_ended":
                applied.span_ended()
            elif event == "others" and not fake.enabled and before[0]:
                fake.enable()
            elif event == "agreed":
                applied.adopted({"gc_interval": max(1, step // 2)}, step + 1)
            if event == "ended" or step >= applied.due:
                applied.step_ended(step)
        applied.closed()
        applied.closed()
        assert fake.state == before
        assert (loader.pin_memory, later.pin_memory, vars(copier)) == (False, False, {})


@given(st.integers(1, 50), st.lists(st.integers(1, 60), min_size=1, max_size=30))
def test_collections_fall_due_by_steps_alone_and_once(interval, strides):
    """However many steps lie between two looks, no multiple of the interval is missed or met twice."""
    step, met = 0, []
    for stride in strides:
        generation = due_between(step, step + stride, interval)
        multiples = [number for number in range(step + 1, step + stride + 1) if number % interval == 0]
        assert (generation is not None) == bool(multiples)
        assert (generation == FULL) == any(number % (interval * 10) == 0 for number in multiples)
        assert generation in {None, YOUNG, FULL}
        met += multiples
        step += stride
    assert len(met) == step // interval
