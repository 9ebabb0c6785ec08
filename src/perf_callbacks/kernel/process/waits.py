"""Times the functions in which a thread blocks until other ranks take part in a collective.

They are timed themselves, so all callers are covered: broadcasts of buffers, gathered metrics, sharded parameters,
barriers. Each wait of the training thread becomes two marks. Not timed: waits in compiled code (`in_compiled_code`),
for a file, in libraries other than torch, and DDP's in C++ at the end of the backward
(`stragglers/gradient_moments.py`). Transfers between two ranks are counted: they may mean different work.
"""

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import get_ident
from typing import Any
from weakref import ref

import torch
from torch import distributed

from perf_callbacks.kernel.engine.marks import BACK, WAIT
from perf_callbacks.kernel.engine.tape import Tape
from perf_callbacks.kernel.foreign_errors import suppress
from perf_callbacks.kernel.process.owner import MOMENT_SECONDS, Owner
from perf_callbacks.kernel.process.patches import Patches
from perf_callbacks.kernel.process.watchdog import WATCHDOG

MOST_PAIRS = 1_000_000
"""Entries (two per mark) after which waits are no longer marked, such as while a model generates a long text."""

TRANSFERS = ("send", "recv", "recv_anysource")

COLLECTIVES = (
    "allreduce", "allreduce_coalesced", "broadcast", "reduce", "gather", "scatter", "barrier",
    "allgather", "allgather_coalesced", "_allgather_base", "all_gather_single",
    "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single",
    "alltoall", "alltoall_base", "all_to_all_single",
)  # fmt: skip
"""Methods of a process group, in any version of torch, that may wait for other ranks. Since torch 2.8, a synchronous
call with NCCL waits within the method, and returns no `Work`."""

COMPILED_WAIT = b"wait_tensor.default("
"""A wait for other ranks in code that Inductor has generated."""

Claim = tuple[int, Tape | None, Callable[[], float]]
"""Training thread of a fit, its tape, and its clock. Without a tape, waits are not timed."""

Tapes = dict[int, tuple[tuple[Tape, Callable[[], float]], ...]]
"""Of the fits that time a thread, by thread."""


class Waits(Owner[Claim]):
    """Replaces the waiting functions of torch while fits of several ranks last."""

    def __init__(self) -> None:
        super().__init__()
        self._patches = Patches()
        self._installed: set[tuple[Any, str]] = set()
        """Replaced now. If an interrupt stops `_arrange`, its next call finishes the change."""
        self._tapes: Tapes = {}
        self.transfers = 0
        """Tensors that this process sent to a single rank, or received from one, while a fit lasted."""

    def watch(self, fit: object, tape: Tape | None, clock: Callable[[], float]) -> Callable[[], object]:
        """Count transfers and, with a tape, time this thread's waits, until the (weak) result is called."""
        self._claim(fit, (get_ident(), tape, clock))
        self.reconcile()
        WATCHDOG.watch(self)
        return functools.partial(self._drop, ref(fit), MOMENT_SECONDS)

    def _arrange(self) -> None:
        claims = [*self._claims.values()]
        tapes: Tapes = {}
        for thread, tape, clock in claims:
            if tape is not None:
                tapes[thread] = (*tapes.get(thread, ()), (tape, clock))
        self._tapes.update(tapes)  # never empty in between: another thread may be about to wait
        for thread in self._tapes.keys() - tapes.keys():
            del self._tapes[thread]
        if claims and distributed.is_available():
            group: Any = sys.modules["torch._C._distributed_c10d"].ProcessGroup
            self._install([(group, name) for name in TRANSFERS], self._counted)
            if tapes:
                self._install(_waiting_functions(), functools.partial(_timed, self._tapes))
                self._install(
                    [(group, name) for name in COLLECTIVES], functools.partial(_timed_if_waiting, self._tapes)
                )
        elif not claims and self._installed:
            self._patches.restore()
            self._installed.clear()

    def _install(self, functions: Iterable[tuple[Any, str]], make: Callable[[Any], object]) -> None:
        for owner, name in functions:
            if (owner, name) not in self._installed:
                self._patches.replace(owner, name, make)
                self._installed.add((owner, name))

    def _counted(self, transfer: Any) -> Callable[..., Any]:
        @functools.wraps(transfer)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.transfers += 1
            return transfer(*args, **kwargs)

        return counted

    def _forked(self) -> None:
        """The main thread of a forked child would be timed: it has the id of the thread that forked."""
        super()._forked()
        self._tapes.clear()


def _waiting_functions() -> Iterator[tuple[Any, str]]:
    c10d: Any = sys.modules["torch._C._distributed_c10d"]  # has the classes behind the public names
    yield c10d.Work, "wait"
    yield c10d.Work, "synchronize"
    yield c10d.ProcessGroup, "monitored_barrier"
    yield distributed, "_broadcast_coalesced"  # buffers of DDP
    yield c10d.Store, "wait"
    yield c10d.Store, "get"  # waits until there is a value
    functional = sys.modules.get("torch.distributed._functional_collectives")
    if functional is not None:
        yield functional, "wait_tensor"  # tensor parallelism


def in_compiled_code() -> bool:
    """Return True if code that Inductor has generated waits for other ranks: these waits can't be timed."""
    cache: Any = getattr(sys.modules.get("torch._inductor.codecache"), "PyCodeCache", None)
    return any([_waits(getattr(module, "__file__", None) or "") for module in [*getattr(cache, "modules", ())]])


@functools.lru_cache(1024)
def _waits(path: str) -> bool:
    with suppress(OSError):  # the file was deleted
        return COMPILED_WAIT in Path(path).read_bytes()
    return False


def _timed(tapes: Tapes, wait: Any) -> Callable[..., Any]:
    tracing, thread = torch.compiler.is_dynamo_compiling, get_ident

    @functools.wraps(wait)
    def timed(*args: Any, **kwargs: Any) -> Any:
        if tracing():  # a compiled graph contains the wait, without marks
            return wait(*args, **kwargs)
        followed = tapes.get(thread())
        if followed is None:
            return wait(*args, **kwargs)
        writes = [(tape.write, clock) for tape, clock in followed if len(tape.pairs) < MOST_PAIRS]
        for write, clock in writes:
            write((WAIT, clock()))
        try:
            return wait(*args, **kwargs)
        finally:
            for write, clock in writes:
                write((BACK, clock()))

    return timed


def _timed_if_waiting(tapes: Tapes, collective: Any) -> Callable[..., Any]:
    """Time synchronous calls that wait, if the previous one returned no `Work`. `Work.wait` is timed separately."""
    timed, waits = _timed(tapes, collective), False

    @functools.wraps(collective)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal waits
        options = kwargs.get("opts", args[-1] if args else None)
        if getattr(options, "asyncOp", True):  # an older torch has no `asyncOp`
            return collective(*args, **kwargs)
        work = (timed if waits else collective)(*args, **kwargs)
        waits = work is None
        return work

    return call


WAITS = Waits()
