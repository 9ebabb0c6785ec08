"""Owner of the functions in which a thread blocks until other ranks take part in a collective.

While a fit of several ranks lasts, each such wait of its training thread becomes two marks on its tape. The waiting
functions themselves are timed, so it doesn't matter who calls them: broadcasts of buffers, gathered metrics, sharded
parameters, barriers.

Not seen: waits in code that Inductor generates, for a store or a file, or in libraries other than torch. DDP waits in
C++ at the end of the backward: see `stragglers/gradient_moments.py`.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any
from weakref import ref

import torch
from torch import distributed

from perf_callbacks.kernel.engine.marks import BACK, WAIT
from perf_callbacks.kernel.engine.tape import Tape
from perf_callbacks.kernel.process.owner import MOMENT_SECONDS, Owner
from perf_callbacks.kernel.process.patches import Patches

MOST_PAIRS = 1_000_000
"""No wait is marked on a tape of this length: the fit generates or evaluates for long, and no step ends."""

Claim = tuple[int, Tape, Callable[[], float]]
"""Training thread of a fit, its tape, and its clock."""


class Waits(Owner[Claim]):
    """Replaces the waiting functions of torch while fits of several ranks last."""

    def __init__(self) -> None:
        super().__init__()
        self._patches = Patches()
        self._installed: set[str] = set()
        """Names of the functions that are replaced. After an interrupt, the next call replaces or restores the rest."""
        self._tapes: dict[int, tuple[tuple[Tape, Callable[[], float]], ...]] = {}

    def watch(self, fit: object, tape: Tape, clock: Callable[[], float]) -> Callable[[], object]:
        """Time the waits of the calling thread for a fit. Return the undo, which doesn't keep the fit alive."""
        self._claim(fit, (get_ident(), tape, clock))
        self.reconcile()
        self._ask_for_ticks()
        return functools.partial(self._drop, ref(fit), MOMENT_SECONDS)

    def _arrange(self) -> None:
        claims = [*self._claims.values()]
        tapes: dict[int, tuple[tuple[Tape, Callable[[], float]], ...]] = {}
        for thread, tape, clock in claims:
            tapes[thread] = (*tapes.get(thread, ()), (tape, clock))
        self._tapes.update(tapes)  # never empty in between: another thread may be about to wait
        for thread in self._tapes.keys() - tapes.keys():
            del self._tapes[thread]
        if claims:
            for owner, name in [*_waiting_functions()]:
                if name not in self._installed:
                    self._patches.replace(owner, name, functools.partial(_timed, self._tapes))
                    self._installed.add(name)
        elif self._installed:
            self._patches.restore()
            self._installed.clear()

    def _forked(self) -> None:
        """Follow no thread in a forked child: its main thread has the number of the parent's."""
        super()._forked()
        self._tapes.clear()


def _waiting_functions() -> Iterator[tuple[Any, str]]:
    """Yield the places of the functions in which threads wait for other ranks."""
    if not distributed.is_available():
        return
    c10d: Any = sys.modules["torch._C._distributed_c10d"]  # has the classes behind the public names
    yield c10d.Work, "wait"
    yield c10d.Work, "synchronize"
    yield c10d.ProcessGroup, "monitored_barrier"
    yield distributed, "_broadcast_coalesced"  # buffers of DDP
    functional = sys.modules.get("torch.distributed._functional_collectives")
    if functional is not None:
        yield functional, "wait_tensor"  # tensor parallelism


def _timed(tapes: dict[int, tuple[tuple[Tape, Callable[[], float]], ...]], wait: Any) -> Callable[..., Any]:
    """Return the function that writes marks around each call of `wait`, if a fit follows the calling thread."""
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


WAITS = Waits()
