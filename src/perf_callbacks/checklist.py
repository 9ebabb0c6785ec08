"""Checklist of changes that can speed up a fit, such as pinned memory. A change is called an item."""

import dataclasses
import functools
import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch
from typing_extensions import override

from perf_callbacks.affinity import item as affinity
from perf_callbacks.garbage import item as garbage
from perf_callbacks.garbage.item import ASKED
from perf_callbacks.kernel.engine.marks import BACK, BEGIN
from perf_callbacks.kernel.engine.observer import Observer
from perf_callbacks.kernel.engine.stages import Stage
from perf_callbacks.kernel.engine.steps import NEVER
from perf_callbacks.kernel.failures import guard, logs
from perf_callbacks.kernel.fit import environment
from perf_callbacks.kernel.fit.item import ADVISED, FAILED, FORESEEN, SKIPPED, ActiveItem, Batches, Fit, Item
from perf_callbacks.kernel.fit.recorder import Recorder
from perf_callbacks.kernel.process import device, resident_memory
from perf_callbacks.kernel.records.fit_records import APPLIED, Checklist
from perf_callbacks.kernel.settings.resolution import Settings
from perf_callbacks.loaders import item as loaders

log = logging.getLogger("perf_callbacks")

EARLY = (loaders.ITEM, affinity.ITEM)
"""They must be applied before the data loaders start."""

ITEMS = (garbage.ITEM, *EARLY)
"""In the order in which they are applied and shown."""

NO_BATCHES = Batches()

NO_PROPOSAL = {ASKED: NEVER}
"""Proposed to all ranks if an item isn't applied on this one."""

LEFT_TO_DO = frozenset({ADVISED, FAILED})
"""They need a person's attention."""


class Startup(Observer):
    """Applies, runs and undoes the checklist items of a fit. If one fails, only this one is undone, and reported."""

    def __init__(
        self,
        fit: Fit,
        items: Iterable[Item],
        earlier: "Startup | None" = None,
        *,
        write: Callable[[Checklist], object] = id,
    ) -> None:
        self._applied: dict[str, ActiveItem] = {} if earlier is None else earlier.hand_over()
        self._write = write
        self._due = NEVER
        done = {} if earlier is None else {row.item: row for row in earlier.rows}
        self.rows: tuple[Checklist, ...] = tuple([done.get(item.slug) or self._start(item, fit) for item in items])
        """As decided when the fit began."""
        self._look_ahead()

    def _start(self, item: Item, fit: Fit) -> Checklist:
        row = _decide(item, fit)
        with guard() as attempt:  # the other items don't depend on this one
            if row.status == APPLIED:
                self._applied[item.slug] = item.apply(fit)
            return row
        return Checklist(item=item.slug, status=FAILED, why=attempt.reason)

    @property
    @override
    def due(self) -> int:
        return self._due

    def announce(self) -> None:
        """Write the rows that were decided at the beginning of the fit."""
        for row in self.rows:
            self._write(row)

    @property
    @override
    def proposals(self) -> Mapping[str, int]:
        proposals = dict(NO_PROPOSAL)
        for item in self._applied.values():
            proposals.update(item.proposals)
        return proposals

    @override
    def adopted(self, least: Mapping[str, int], step: int) -> None:
        self._each(lambda item: item.adopted(least, step))

    @override
    def step_ended(self, step: int) -> None:
        self._each(lambda item: item.step_ended(step))

    @override
    def span_began(self, kind: str, step: int) -> None:
        self._each(lambda item: item.span_began(kind, step))

    @override
    def span_ended(self) -> None:
        self._each(lambda item: item.span_ended())

    @override
    def closed(self) -> None:
        self._due = NEVER
        with ExitStack() as undo:
            for item in self.hand_over().values():
                undo.callback(item.closed)

    def hand_over(self) -> dict[str, ActiveItem]:
        """Return the applied items for another `Startup`, which then has to undo them."""
        applied, self._applied = self._applied, {}
        return applied

    def _each(self, tell: Callable[[ActiveItem], object]) -> None:
        for slug, item in [*self._applied.items()]:
            with guard() as attempt:  # a failed item is undone; the other items and the fit go on
                tell(item)
                self._hear(item.news())
                continue
            del self._applied[slug]
            self._hear([Checklist(item=slug, status=FAILED, why=attempt.reason)])
            item.closed()
        self._look_ahead()

    def _hear(self, news: list[Checklist]) -> None:
        for row in news:
            log.warning("perf_callbacks: %s: %s: %s.", row.item, row.status, row.why)
            self._write(row)

    def _look_ahead(self) -> None:
        self._due = min((item.due for item in self._applied.values()), default=NEVER)


def start(
    recorder: Recorder,
    settings: Settings,
    place_device: torch.device,
    batches: Batches = NO_BATCHES,
    earlier: Startup | None = None,
) -> tuple[Checklist, ...]:
    """Closing the recorder undoes all items."""
    if not recorder.active or settings.config.checklist == "off":
        return ()
    startup = None
    with guard(logs(log.warning, "perf_callbacks: no checklist, measuring goes on: %s.", trace=True)):
        fit = dataclasses.replace(
            _fit(settings, place_device, batches),
            step=recorder.run.step,
            aside=functools.partial(_aside, weakref.ref(recorder)),
            progress=recorder.progress_of,
        )
        startup = Startup(fit, ITEMS, earlier, write=recorder.write)
    if startup is None:
        return ()
    recorder.observe(startup)
    startup.announce()
    return startup.rows


def prepare(
    settings: Settings, place_device: torch.device, batches: Batches, local_ranks: tuple[int, int] | None = None
) -> Startup | None:
    """Apply the items that must precede the start of the loaders. A later call of `start` takes them over."""
    if settings.config.checklist == "off" or not settings.config.enabled:
        return None
    return Startup(_fit(settings, place_device, batches, local_ranks), EARLY)


def foresee(settings: Settings, place_device: torch.device) -> tuple[tuple[Checklist, ...], environment.Environment]:
    """Return what a fit on this device would get, and its environment. This changes nothing."""
    fit = _fit(settings, place_device, NO_BATCHES)
    if settings.config.checklist == "off" or not settings.config.enabled:
        return (), fit.environment
    rows = [_decide(item, fit) for item in ITEMS]
    foreseen = [dataclasses.replace(row, status=FORESEEN) if row.status == APPLIED else row for row in rows]
    return tuple(foreseen), fit.environment


def _decide(item: Item, fit: Fit) -> Checklist:
    row = None
    with guard() as attempt:  # the other items don't depend on this one
        row = item.decide(fit.environment, fit.config)
    if row is None:
        return Checklist(item=item.slug, status=FAILED, why=attempt.reason)
    if item.slug in map(str.strip, fit.config.skip.split(",")):
        return Checklist(item=item.slug, status=SKIPPED, before=row.before, why=f"skip names {item.slug}")
    return row


@contextmanager
def _aside(reference: "weakref.ref[Recorder]") -> Iterator[None]:
    """Take the block's time out of the step's, but keep the step in all metrics."""
    recorder = reference()
    began = 0.0
    if recorder is not None:
        began = recorder.clock()
        recorder.enter(BEGIN[Stage.ASIDE])
    try:
        yield
    finally:
        if recorder is not None:
            recorder.enter(BACK)
            recorder.engine.account.own_seconds += recorder.clock() - began


def _fit(
    settings: Settings, place_device: torch.device, batches: Batches, local_ranks: tuple[int, int] | None = None
) -> Fit:
    facts = environment.read(
        device=device.device_at(place_device),
        devices=batches.devices,
        affinity=settings.config.affinity,
        workers=max([batches.workers, *map(workers, batches.loaders)]),
        local_ranks=local_ranks,
        loaders_pin=batches.pinned,
        copies_go_on=batches.copied_aside,
        count_frozen=settings.config.gc == "freeze",
    )
    measure = functools.partial(resident_memory.in_use, functools.partial(_allocated, device.device_at(place_device)))
    return Fit(config=settings.config, environment=facts, step=0, memory=measure, batches=batches)


def _allocated(place: device.Device) -> int | None:
    allocator = place.allocator()
    return None if allocator is None else allocator.allocated_bytes


def workers(loader: object) -> int:
    """0 if unknown."""
    number = getattr(loader, "num_workers", 0)
    return number if isinstance(number, int) else 0
