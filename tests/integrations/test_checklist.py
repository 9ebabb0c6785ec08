"""The checklist through every door: applied while a fit lasts, and nothing left of it afterwards."""

import gc
import multiprocessing

import pytest
import torch
from collector import automatic as collects
from faults import ERRORS
from sampling import sampled
from torch.utils.data import DataLoader, Dataset
from trainings.doors import DOORS
from trainings.runs import records

from perf_callbacks import PerfConfig
from perf_callbacks.kernel.records.fit_records import Checklist, Gc
from perf_callbacks.loop import measure

every_door = pytest.mark.parametrize("through", DOORS.values(), ids=DOORS)
pytestmark = pytest.mark.usefixtures("accelerate_state")

STEPS = 8


@every_door
def test_ranks_collect_when_the_counter_says_so_and_not_otherwise(tmp_path, through):
    automatic = {}

    def after_step(step):
        automatic[step] = collects()

    summary = through(tmp_path, after_step=after_step, gc_interval=3).run().summary
    assert automatic == {step: step < 2 for step in range(1, STEPS + 1)}
    assert collects()
    ours = [(pause.step, pause.generation) for pause in records(tmp_path, Gc) if 3 <= pause.step <= STEPS]
    assert ours == [(3, 1), (6, 1)]
    assert {pause.ours for pause in records(tmp_path, Gc) if 3 <= pause.step <= STEPS} == {"schedule"}
    assert [pause.step for pause in records(tmp_path, Gc) if pause.automatic and pause.step in range(3, STEPS)] == []
    row, loaders, affinity = records(tmp_path, Checklist)
    assert (row.item, row.status, row.after) == ("gc", "applied", "every 3 steps, full every 30")
    assert (loaders.item, loaders.status) == ("loaders", "not applicable")
    assert (affinity.item, affinity.status) == ("affinity", "not applicable")
    assert summary.failure is None


SWITCH_INTERVAL = [{"checklist": "off"}, {"skip": "gc"}, {"gc": "observe"}, {"gc": "off"}]


@pytest.mark.parametrize(("through", "config"), sampled(DOORS, SWITCH_INTERVAL))
def test_each_switch_leaves_the_collector_alone(tmp_path, through, config):
    automatic = []
    through(tmp_path, after_step=lambda _: automatic.append(collects()), **config).run()
    assert automatic == [True] * STEPS
    found = [row.status for row in records(tmp_path, Checklist) if row.item == "gc"]
    assert found == ([] if "checklist" in config else ["skipped"])


@pytest.mark.parametrize(("through", "error"), sampled(DOORS, ERRORS))
def test_however_it_ends_automatic_collection_is_back(tmp_path, through, error):
    def after_step(step):
        if step == 3:
            assert not collects()
            raise error

    with pytest.raises((type(error), SystemExit)):  # Lightning exits after an interrupt
        through(tmp_path, after_step=after_step).run()
    assert collects()


@every_door
def test_who_manages_the_collector_by_themselves_is_left_alone(tmp_path, through):
    gc.disable()
    try:
        through(tmp_path, gc_interval=1).run()
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert [row.status for row in records(tmp_path, Checklist) if row.item == "gc"] == ["already so"]
    assert [pause for pause in records(tmp_path, Gc) if 3 <= pause.step <= STEPS] == []


@pytest.mark.parametrize(("through", "other"), sampled(DOORS, {name: DOORS[name] for name in ("transformers", "loop")}))
def test_a_fit_within_a_fit_leaves_the_outer_one_what_it_had(tmp_path, through, other):
    automatic = []

    def after_step(step):
        automatic.append(collects())
        if step == 4:
            inner = []
            other(tmp_path / "inner", after_step=lambda _: inner.append(collects())).run()
            assert inner == [False] * STEPS  # first the outer one's doing, then its own
            assert not collects()  # it goes on as it was

    through(tmp_path, after_step=after_step, gc_interval=1).run()
    assert automatic == [True] + [False] * (STEPS - 1)
    assert collects()


def test_objects_that_the_program_has_frozen_stay_frozen(tmp_path):
    """Tests run on frozen objects, except those that use `thawed`."""
    found = gc.get_freeze_count()
    DOORS["loop"](tmp_path, gc="freeze", gc_interval=5).run()
    assert found == pytest.approx(gc.get_freeze_count(), rel=0.01)
    (row,) = [row for row in records(tmp_path, Checklist) if row.item == "gc"]
    assert (row.status, row.why.endswith(" are frozen")) == ("already so", True)


@pytest.mark.usefixtures("thawed")
def test_the_first_full_collection_freezes_for_as_long_as_the_fit_lasts(tmp_path):
    """What it takes is told apart: it is no collection of the program's, and part of no step."""
    frozen = []
    training = DOORS["loop"](
        tmp_path, after_step=lambda _: frozen.append(gc.get_freeze_count() > 10_000), gc="freeze", gc_interval=5
    ).run()
    assert frozen == [False] * 4 + [True] * (STEPS - 4)
    assert gc.get_freeze_count() < 1000
    (startup,) = [pause for pause in records(tmp_path, Gc) if pause.ours == "startup"]
    assert (startup.step, startup.stage, startup.generation) == (5, "aside", 2)
    assert training.summary.gc.startup_seconds == pytest.approx(startup.seconds)
    assert training.summary.gc.collections[2] == 0


class Answers(Dataset):
    """Whether automatic collection is on where the item is made."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor(float(collects()))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="nothing is forked on this system")
def test_workers_that_are_forked_while_it_is_off_collect_by_themselves(tmp_path):
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Answers(), batch_size=2, num_workers=2, multiprocessing_context="fork")
    here, there = [], []
    with measure(model=model, optimizer=optimizer, loader=loader, config=PerfConfig(output_dir=str(tmp_path))) as perf:
        for _ in range(2):
            for batch in perf.loader:
                model(batch[:, None]).sum().backward()
                optimizer.step()
                here.append(collects())
                there += batch.tolist()
    assert here == [True] + [False] * 7
    assert there == [1.0] * 16
