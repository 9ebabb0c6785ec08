"""Waits in collectives: each is two marks on the tape of the fit whose thread waits."""

import sys
import threading
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from rows import each_row
from torch.distributed import _functional_collectives as functional

from perf_callbacks.kernel.engine.marks import BACK, BEGIN, END, WAIT
from perf_callbacks.kernel.engine.stages import STAGES, Stage
from perf_callbacks.kernel.engine.tape import Tape
from perf_callbacks.kernel.process.patches import Patches
from perf_callbacks.kernel.process.waits import WAITS, in_compiled_code

WORK = torch._C._distributed_c10d.Work


class Token:
    """Stands for a fit."""


def stored():
    store = dist.HashStore()
    store.set("a", "b")
    return store


@pytest.fixture
def group():
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


@pytest.fixture
def tape(group):
    tape, count = Tape(), iter(range(1000))
    tape.begin(0.0)
    fit = Token()
    leave = WAITS.watch(fit, tape, lambda: float(next(count)))
    yield tape
    leave()


def marks(tape):
    written = tape.pairs[::2]
    tape.pairs.clear()
    return written


@pytest.mark.parametrize(
    "collective",
    [
        lambda: dist.all_reduce(torch.ones(2)),
        lambda: dist.all_reduce(torch.ones(2), async_op=True).wait(),
        dist.barrier,
        dist.monitored_barrier,
        lambda: dist._broadcast_coalesced(dist.group.WORLD, [torch.ones(2)], 100, 0),
        lambda: functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD) + 1,
        lambda: dist.HashStore().wait([]),
        lambda: stored().get("a"),
    ],
    ids=["sync", "async", "barrier", "monitored", "buffers", "functional", "store wait", "store get"],
)
def test_a_collective_is_a_wait(tape, collective):
    collective()
    assert marks(tape) == [WAIT, BACK]


@pytest.fixture
def nccl(monkeypatch):
    """Process groups whose synchronous calls return no `Work`, as with NCCL since torch 2.8."""
    if not hasattr(dist.AllreduceOptions(), "asyncOp"):
        pytest.skip("before torch 2.8, synchronous collectives call Work.wait, which other tests cover")
    for name in ("allreduce", "barrier"):
        monkeypatch.setattr(dist.ProcessGroup, name, lambda *_, opts=None: None)


@pytest.mark.parametrize("collective", [lambda **kwargs: dist.all_reduce(torch.ones(2), **kwargs), dist.barrier])
def test_a_collective_that_waits_itself_is_a_wait_from_the_second_call_on(nccl, tape, collective):
    collective()
    assert marks(tape) == []
    collective()
    assert marks(tape) == [WAIT, BACK]
    collective(async_op=True)
    assert marks(tape) == []


@pytest.mark.parametrize("name", ["send", "recv", "recv_anysource"])
def test_transfers_between_two_ranks_are_counted_also_without_a_tape(group, name):
    kind, before = dist.ProcessGroup, WAITS.transfers
    fit, original, wait = Token(), vars(kind)[name], vars(WORK)["wait"]
    leave = WAITS.watch(fit, None, float)
    with pytest.raises(TypeError):  # it has no arguments
        getattr(kind, name)()
    assert WAITS.transfers == before + 1
    assert vars(WORK)["wait"] is wait, "nothing is timed without a tape"
    leave()
    assert vars(kind)[name] is original


def test_a_wait_in_generated_code_is_found_once_the_code_is_loaded(tmp_path, monkeypatch):
    module = tmp_path / "generated.py"
    module.write_text("torch.ops._c10d_functional.all_reduce_.default(buf0, 'sum', '0')")
    cache = SimpleNamespace(modules=[SimpleNamespace(__file__=str(module))])
    monkeypatch.setitem(sys.modules, "torch._inductor.codecache", SimpleNamespace(PyCodeCache=cache))
    assert not in_compiled_code()
    waits = tmp_path / "waits.py"
    cache.modules.append(SimpleNamespace(__file__=str(waits)))  # a file that is gone tells nothing
    assert not in_compiled_code()
    again = tmp_path / "again.py"
    again.write_text("torch.ops._c10d_functional.wait_tensor.default(buf0)")
    cache.modules.append(SimpleNamespace(__file__=str(again)))
    assert in_compiled_code()


def test_without_the_compiler_nothing_waits_in_generated_code(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch._inductor.codecache", None)
    assert not in_compiled_code()


def test_a_wait_that_fails_ends_too(tape):
    with pytest.raises(TypeError):
        WORK.wait()
    assert marks(tape) == [WAIT, BACK]


def test_waits_of_other_threads_are_not_marked(tape):
    thread = threading.Thread(target=dist.barrier)
    thread.start()
    thread.join()
    assert marks(tape) == []


def test_waits_belong_to_each_fit_of_the_thread_and_are_restored_in_any_order(group):
    before = vars(WORK)["wait"], dist._broadcast_coalesced, functional.wait_tensor
    fits = []
    for _ in range(2):
        token, tape = Token(), Tape()
        tape.begin(0.0)
        fits.append((token, tape, WAITS.watch(token, tape, lambda: 1.0)))
    dist.barrier()
    assert [marks(tape) for _, tape, _ in fits] == [[WAIT, BACK]] * 2
    fits[0][2]()
    dist.barrier()
    assert [marks(tape) for _, tape, _ in fits] == [[], [WAIT, BACK]]
    fits[1][2]()
    fits[1][2]()
    assert (vars(WORK)["wait"], dist._broadcast_coalesced, functional.wait_tensor) == before


def test_a_fit_that_is_freed_leaves_nothing_behind(group):
    before = vars(WORK)["wait"]
    token, tape = Token(), Tape()
    tape.begin(0.0)
    WAITS.watch(token, tape, lambda: 1.0)
    assert vars(WORK)["wait"] is not before
    del token
    assert vars(WORK)["wait"] is before


def test_compiled_code_may_contain_a_wait(tape):
    def reduced(x):
        return functional.wait_tensor(functional.all_reduce(x, "sum", dist.group.WORLD)) + 1

    compiled = torch.compile(reduced, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]


@each_row("stage", [stage for stage in Stage if stage not in {Stage.GC, Stage.COMMUNICATION}])
def test_a_wait_leaves_its_stage_but_for_backward_and_work_outside_of_steps(stage):
    tape = Tape()
    tape.begin(0.0)
    for mark, time in pairwise([BEGIN[stage], 1.0, WAIT, 3.0, BACK, 7.0, BACK, 8.0, END, 8.0, None]):
        if not isinstance(mark, float):
            tape.write((mark, time))
    past, _ = tape.read()
    seconds = dict(zip(STAGES, past.rows[0], strict=True))
    kept = {Stage.BACKWARD: 7.0, Stage.ASIDE: 0, Stage.OTHER: 4.0}.get(stage, 3.0)
    assert seconds[Stage.COMMUNICATION] == (0 if stage in {Stage.BACKWARD, Stage.ASIDE} else 4.0)
    assert past.calls == [(stage is Stage.FORWARD, stage is Stage.BACKWARD)]
    if stage is Stage.UNDECIDED:  # the wait makes the time before it the optimizer's
        assert (seconds[Stage.OPTIMIZER], seconds[Stage.OTHER]) == (2.0, 2.0)
    elif stage is not Stage.ASIDE:
        assert seconds[stage] == kept


def test_an_interrupted_replacement_is_finished_and_undone_by_the_next_call(group, monkeypatch):
    before, interrupts = vars(WORK)["wait"], [KeyboardInterrupt]
    replace = Patches.replace

    def interrupted(patches, owner, name, make):
        if name == "synchronize" and interrupts:
            raise interrupts.pop()
        replace(patches, owner, name, make)

    monkeypatch.setattr(Patches, "replace", interrupted)
    token, tape = Token(), Tape()
    tape.begin(0.0)
    with pytest.raises(KeyboardInterrupt):
        WAITS.watch(token, tape, lambda: 1.0)
    assert WAITS.tick(0.0)
    dist.monitored_barrier()
    assert marks(tape) == [WAIT, BACK]
    WAITS.release(token)
    assert vars(WORK)["wait"] is before
