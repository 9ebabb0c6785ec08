"""The checklist item `loaders`: pinned batches and asynchronous copies. Number and order of batches stay.

The host always waits for a copy from unpinned memory, and with `non_blocking=True` never for one from pinned memory.
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader
from typing_extensions import override

from perf_callbacks.kernel.engine.steps import NEVER
from perf_callbacks.kernel.fit.environment import Environment
from perf_callbacks.kernel.fit.first_batch import FirstBatch, tensors
from perf_callbacks.kernel.fit.item import ADVISED, ALREADY, NOT_APPLICABLE, SKIPPED, ActiveItem, Fit, Item
from perf_callbacks.kernel.foreign_errors import let_pass, suppress
from perf_callbacks.kernel.process.patches import Patches
from perf_callbacks.kernel.records.fit_records import APPLIED, Checklist
from perf_callbacks.kernel.settings.config import PerfConfig

MOST_PINNED = 0.1  # share of the available host memory that pinned batches may take: it can't be swapped out


SLUG = "loaders"


def decide(environment: Environment, config: PerfConfig) -> Checklist:
    status, why = _status(environment, config)
    before = ", ".join(part for part in (_PINS[environment.loaders_pin], _COPIES[environment.copies_go_on]) if part)
    pinned = "pinned" if environment.copies_go_on is None else "pinned, asynchronous copies"
    after = {ADVISED: _line(environment), APPLIED: pinned}.get(status)
    return Checklist(item=SLUG, status=status, before=before, after=after, why=why)


_PINS = {True: "pinned", False: "not pinned", None: "pinned if the loader says so"}
_COPIES = {True: "asynchronous copies", False: "the host waits for copies", None: ""}
WHY = "a host that waits for copies can't run ahead of its device"


def _status(environment: Environment, config: PerfConfig) -> tuple[str, str]:
    if config.loaders == "off":
        return SKIPPED, "loaders=off"
    if environment.accelerator is None:
        return NOT_APPLICABLE, "there is no accelerator to copy to"
    if environment.pinned_copies is False:
        return NOT_APPLICABLE, f"{environment.accelerator} does not copy from pinned memory"
    if environment.loaders_pin is False:
        return SKIPPED, "the trainer is configured not to pin batches"
    if environment.loaders_pin and environment.copies_go_on is not False:
        return ALREADY, WHY
    sure = environment.pinned_copies is not None
    why = WHY if sure else f"{WHY}; it is unknown if {environment.accelerator} copies safely from pinned memory"
    return (APPLIED if sure and config.loaders != "advise" else ADVISED), why


def _line(environment: Environment) -> str:
    pin = "" if environment.loaders_pin else "DataLoader(..., pin_memory=True)"
    copies = "" if environment.copies_go_on is not False else "non_blocking=True for the trainer's copies"
    return ", ".join(part for part in (pin, copies) if part)


class PinnedLoading(ActiveItem):
    """Pins batches and copies them asynchronously, until `closed`."""

    slug = SLUG

    def __init__(self, fit: Fit) -> None:
        super().__init__()
        self._patches = Patches()
        self._undo = weakref.finalize(self, self._patches.restore)  # holds no reference to this object
        self._trainer_patches = Patches()
        self._room = None
        if fit.environment.memory_available is not None:
            self._room = MOST_PINNED * fit.environment.memory_available / fit.environment.local_world_size
        self._held: list[int] = []
        self._due, self._patience = 0, 1
        batches = fit.batches
        if fit.environment.loaders_pin is None:
            pin = functools.partial(_pin, self._patches, self._held)
            for loader in batches.loaders:
                pin(loader)
            if batches.process is not None:
                self._trainer_patches.replace(*batches.process, functools.partial(_processing, pin))
        self._first = batches.first_batch or FirstBatch()
        self._first.wanted = True
        if batches.first is not None:
            self._trainer_patches.replace(*batches.first, functools.partial(_seeing, self._first))
        if batches.copy is not None:
            self._patches.replace(*batches.copy, functools.partial(_copying, self._first))

    @override
    def step_ended(self, step: int) -> None:
        if step < self._due:
            return
        if self._first.kind is None:
            self._due, self._patience = step + self._patience, 2 * self._patience
            return
        self._due = NEVER
        needed = self._first.bytes * max(self._held, default=0)
        if not self._first.pinned:
            self.closed()
            self._say(NOT_APPLICABLE, f"the loader does not pin batches of type {self._first.kind}")
        elif self._room is not None and needed > self._room:
            self.closed()
            self._say(
                SKIPPED,
                f"pinned batches would take {needed / 1e6:,.0f} MB, more than the {self._room / 1e6:,.0f} MB allowed",
            )

    @override
    def closed(self) -> None:
        self._due = NEVER
        self._trainer_patches.restore()
        self._undo()


def _pin(patches: Patches, held: list[int], loader: Any) -> None:
    loader = getattr(loader, "base_dataloader", loader)  # accelerate wraps the loader
    if isinstance(loader, DataLoader) and not loader.pin_memory and loader._iterator is None:  # noqa: SLF001
        patches.add(functools.partial(_unpin, weakref.ref(loader), loader.pin_memory))
        loader.pin_memory = True
        held.append((loader.prefetch_factor or 0) * loader.num_workers + 2)


def _unpin(reference: "weakref.ref[DataLoader[Any]]", before: bool) -> None:  # noqa: FBT001 the loader's own value
    loader = reference()
    if loader is not None and loader.pin_memory is True:
        loader.pin_memory = before


def _processing(pin: Callable[[Any], None], inner: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(inner)
    def call(*args: Any, **kwargs: Any) -> Any:
        loader = inner(*args, **kwargs)
        with suppress(Exception):  # after an error, the loader doesn't pin, and the first batch shows this
            pin(loader)
        return loader

    return call


def _seeing(first: FirstBatch, inner: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function that is called with each batch before its copy to the device."""

    @functools.wraps(inner)
    def call(batch: Any, *args: Any, **kwargs: Any) -> Any:
        first.see(batch)
        return inner(batch, *args, **kwargs)

    return call


def _copying(first: FirstBatch, inner: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(inner)
    def call(batch: Any, device: Any, *args: Any, **kwargs: Any) -> Any:
        first.see(batch)
        try:
            pinned = not args and next(tensors(batch)).is_pinned()
        except Exception as error:  # noqa: BLE001 a batch may be anything, and have no tensor at all
            let_pass(error)
            pinned = False
        return inner(batch, device, *args, **(kwargs | {"non_blocking": True} if pinned else kwargs))

    return call


ITEM = Item(SLUG, decide, PinnedLoading)
