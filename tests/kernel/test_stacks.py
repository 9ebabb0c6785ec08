"""Where another thread is."""

import sys
import threading
import time
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import pytest
import torch.distributed as dist
from rows import each_row

from perf_callbacks.kernel.process import stacks


@contextmanager
def a_thread(target):
    """A thread that has called `target`, which is to wait for the event that it is given."""
    begun, end = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: target(begun, end), daemon=True)
    thread.start()
    assert begun.wait(60)
    try:
        yield thread
    finally:
        end.set()
        thread.join()


def waits(begun, end):
    begun.set()
    end.wait()


HERE = waits.__code__.co_firstlineno + 2
"""The line of `waits` that waits."""


def settled(thread):
    """Its stack, once it is where it waits."""
    while not (stack := stacks.of_thread(thread.ident)).place.endswith("wait`"):
        time.sleep(0.001)
    return stack


def test_the_innermost_line_of_the_program_is_named_and_where_it_waits():
    with a_thread(waits) as thread:
        stack = settled(thread)
    assert stack.place.startswith(f"test_stacks.py:{HERE} `waits`, in threading.py:")
    assert stack.place.endswith("wait`")
    assert f"{__file__}:{HERE} waits" in stack.frames
    assert stack.frames[-1].endswith(" wait")
    assert not stack.waits
    assert stacks.of_thread(thread.ident) is None  # it has ended


def test_a_search_through_a_stack_ends_soon_in_the_deepest_recursion(monkeypatch):
    def forward(begun, end):
        beneath(begun, end, 50)

    def beneath(begun, end, depth):
        if depth:
            beneath(begun, end, depth - 1)
        else:
            waits(begun, end)

    with a_thread(forward) as thread:
        stack = settled(thread)
        assert len(stack.frames) == stacks.MOST_FRAMES  # of the inner end
        assert stack.frames[-1].endswith(" wait")
        assert stacks.position(thread.ident).in_model
        monkeypatch.setattr(stacks, "DEEPEST", 10)
        assert not stacks.position(thread.ident).in_model
        assert len(stacks.of_thread(thread.ident).frames) == 10


def run_in(module, source, *, file=None, name="call", **names):
    """A function of a module that doesn't exist."""
    made = ModuleType(module)
    vars(made).update(names)
    exec(compile(source, file or f"{sys.prefix}/lib/site-packages/{module}.py", "exec"), vars(made))
    return vars(made)[name]


INNER = "def call(begun, end):\n    begun.set()\n    while not end._flag:\n        pass\n"
OUTER = "def call(begun, end):\n    inner(begun, end)\n"


def test_a_collective_and_a_backward_are_waits():
    for module in ("torch.distributed.distributed_c10d", "torch.autograd.graph"):
        with a_thread(run_in(module, INNER)) as thread:
            assert stacks.of_thread(thread.ident).waits


def calls(source, **names):
    """A function of the program."""
    return run_in("train", f"def call(begun, end):\n    begun.set()\n    {source}\n", file="/home/a/train.py", **names)


@each_row(
    ("source", "waits"),
    [
        ("handle.wait(['a'])", True),
        ("store.get('a')", True),
        ("my_store.get(str(\n        'a'))", True),
        ("handle.get('a')", False),
        ("{1: store}.get(1); hold()", True),  # one line of two calls
        ("hold()", False),
    ],
)
def test_a_wait_in_c_for_other_ranks_is_found_by_the_names_on_its_line(source, waits):
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=60))
    lock = threading.Lock()
    lock.acquire()
    with a_thread(calls(source, store=store, my_store=store, handle=store, hold=lock.acquire)) as thread:
        while not (stack := stacks.of_thread(thread.ident)).place.startswith("train.py:3 "):
            time.sleep(0.001)
        time.sleep(0.1)  # into the call, whose line has begun
        stack = stacks.of_thread(thread.ident)
        store.set("a", "1")
        lock.release()
    assert stack is not None
    assert stack.waits is waits


def test_an_operation_waits_if_its_caller_names_a_wait():
    operation = run_in("torch._ops", INNER)
    for name, waiting in (("wait_tensor", True), ("mm", False)):
        source = f"def call(begun, end):\n    {name}(begun, end)\n"
        with a_thread(run_in("torch.generated", source, **{name: operation})) as thread:
            assert stacks.of_thread(thread.ident).waits is waiting


@each_row(
    ("outer", "inner", "seen"),
    [
        *[(module, "cmd", False) for module in ("bdb", "pdb", "pydevd", "debugpy._vendored")],
        ("ipykernel.kernelapp", "asyncio.base_events", False),
        ("ipykernel.kernelapp", "IPython.core.interactiveshell", True),  # a cell runs
    ],
)
def test_a_debugger_and_an_idle_notebook_are_not_looked_at(outer, inner, seen):
    with a_thread(run_in(outer, OUTER, inner=run_in(inner, INNER))) as thread:
        assert (stacks.of_thread(thread.ident) is not None) == seen


def positioned(module, name="call", inner="json"):
    """The position of a thread in a function of the program, between functions of two other modules."""
    source = OUTER.replace("call", name)
    own = run_in("train", source, file="/home/a/train.py", name=name, inner=run_in(inner, INNER))
    with a_thread(run_in(module, OUTER, inner=own) if module else own) as thread:
        return stacks.position(thread.ident)


@each_row(
    ("module", "name", "in_model"),
    [
        (None, "call", False),
        (None, "forward", True),
        ("torch.nn.modules.module", "hook", True),
        ("torch.optim.optimizer", "step", True),
        ("torch.optim.optimizer", "hook", False),
        (None, "step", False),
    ],
)
def test_a_forward_and_an_update_are_the_model(module, name, in_model):
    assert positioned(module, name).in_model is in_model


def test_a_line_that_calls_more_than_an_operation_is_in_torch():
    for inner in ("torch.optim.adamw", "torch.nn.functional", "torch.functional", "json"):
        assert positioned(None, inner=inner).in_torch == (inner == "torch.optim.adamw")
    assert positioned(None, inner="lightning.fabric") is None  # of the framework that trains


TRAINER = """
def call(begun, end):
    hook(begun, end)
    step(begun, end)
"""


@pytest.mark.parametrize(("step", "position"), [("wait", None), ("forward", "test_stacks.py")])
def test_a_line_that_calls_a_library_with_a_trainer_is_no_position(step, position):
    """The program calls `fit` of a library, which makes the trainer itself."""
    outer = []

    def hook(_begun, _end):
        outer.append(stacks.around_trainer())

    def forward(begun, end):
        begun.set()
        while not end.is_set():
            pass

    wait = run_in("torch.autograd", INNER)
    trainer = run_in("lightning.loops", TRAINER, hook=hook, step={"wait": wait, "forward": forward}[step])
    library = run_in("neuralforecast", OUTER, inner=trainer)

    def program(begun, end):
        library(begun, end)

    with a_thread(program) as thread:
        inner = stacks.position(thread.ident, outer[0])
        assert (None if inner is None else inner.line.partition(":")[0]) == position
        assert "`program`" in stacks.position(thread.ident).line or step == "forward"


class Work:
    """As the handle of a collective, which another rank ends."""

    def __init__(self, end):
        self.is_completed = end.is_set


@each_row(
    ("source", "polls"),
    [
        ("work = Work(end)\n    while not work.is_completed():\n        sleep(0.0001)", True),
        ("while not end.is_set() and not folder.exists():\n        sleep(0.0001)", True),
        ("steps = 0\n    while not end.is_set():\n        sleep(0.0001)\n        steps += 1", False),
        ("while not end.is_set():\n        for _ in range(100):\n            sleep(0.0001)", False),
        ("for step in iter(end.is_set, True):\n        folder.exists()\n        sleep(0.0001)", False),
        ("end.wait()", False),
    ],
)
def test_a_loop_that_only_asks_for_the_end_of_another_rank_polls(source, polls):
    with a_thread(calls(source, Work=Work, folder=Path("nowhere"), sleep=time.sleep)) as thread:
        answers = set()
        for _ in range(50):
            time.sleep(0.001)
            answers.add(stacks.position(thread.ident).polls)
    assert polls in answers if polls else answers == {False}
