"""One fit's checklist: decided and applied when it begins, seen to while it lasts, undone when it ends."""

import logging
from collections.abc import Callable, Iterable
from contextlib import ExitStack

import torch

from perf_callbacks.checklist.item import APPLIED, FAILED, SKIPPED, Fit, Item
from perf_callbacks.checklist.items import ITEMS
from perf_callbacks.core.records import Checklist
from perf_callbacks.core.settings import Settings
from perf_callbacks.core.sources import Upkeep
from perf_callbacks.host import device, environment, memory
from perf_callbacks.host.recorder import Recorder, describe
from perf_callbacks.host.upkeep import NEVER

log = logging.getLogger("perf_callbacks")


class Startup:
    """The items that were applied. One that fails is undone and says so; the others go on."""

    def __init__(self, fit: Fit, items: Iterable[Item] = ITEMS) -> None:
        self._applied: dict[str, Upkeep] = {}
        self._news: list[Checklist] = []
        self.due = NEVER
        self.rows: tuple[Checklist, ...] = ()
        """One for each item, as decided at the beginning."""
        skipped = {name.strip() for name in fit.config.skip.split(",") if name.strip()}
        known = [item.slug for item in items]
        for name in sorted(skipped - {*known}):
            log.warning("perf_callbacks: skip names %s, which is no item: they are %s.", name, ", ".join(known))
        self.rows = tuple(self._start(item, fit, skip=item.slug in skipped) for item in items)
        self._news += self.rows
        self._look_ahead()

    def _start(self, item: Item, fit: Fit, *, skip: bool) -> Checklist:
        try:
            row = item.decide(fit.environment, fit.config)
            if skip:
                return Checklist(item=item.slug, status=SKIPPED, before=row.before, why=f"skip names {item.slug}")
            if row.status == APPLIED:
                self._applied[item.slug] = item.apply(fit)
        except Exception as error:  # noqa: BLE001 the other items don't depend on this one
            return Checklist(item=item.slug, status=FAILED, why=describe(error))
        return row

    def end_step(self, step: int) -> None:
        """A step that is due is about to end."""
        self._each(lambda upkeep: upkeep.end_step(step))

    def begin_span(self, kind: str, step: int) -> None:
        """Evaluation, checkpointing or the like has begun after that step."""
        self._each(lambda upkeep: upkeep.begin_span(kind, step))

    def end_span(self) -> None:
        """It is about to end."""
        self._each(lambda upkeep: upkeep.end_span())

    def news(self) -> list[Checklist]:
        """What there is to say since the last call."""
        news, self._news = self._news, []
        return news

    def close(self) -> None:
        """Undo everything, last first. Twice is once."""
        applied, self._applied = self._applied, {}
        self.due = NEVER
        with ExitStack() as undo:
            for upkeep in applied.values():
                undo.callback(upkeep.close)

    def _each(self, tell: Callable[[Upkeep], object]) -> None:
        for slug, upkeep in [*self._applied.items()]:
            try:
                tell(upkeep)
                self._hear(upkeep.news())
            except Exception as error:  # noqa: BLE001 an item that fails is undone, and nothing else ends
                del self._applied[slug]
                self._hear([Checklist(item=slug, status=FAILED, why=describe(error))])
                upkeep.close()
        self._look_ahead()

    def _hear(self, news: list[Checklist]) -> None:
        for row in news:
            log.warning("perf_callbacks: %s: %s: %s.", row.item, row.status, row.why)
        self._news += news

    def _look_ahead(self) -> None:
        self.due = min((upkeep.due for upkeep in self._applied.values()), default=NEVER)


def start(recorder: Recorder, settings: Settings, place_device: torch.device) -> tuple[Checklist, ...]:
    """Go through the checklist for the fit that a recorder measures; it is undone when that closes."""
    if not recorder.active or settings.config.checklist == "off":
        return ()
    try:
        startup = Startup(_fit(recorder, settings, place_device))
    except Exception as error:
        log.warning("perf_callbacks: no checklist, measuring goes on: %s.", describe(error), exc_info=error)
        return ()
    recorder.patches.add(startup.close)
    recorder.upkeep.take(startup)
    return startup.rows


def _fit(recorder: Recorder, settings: Settings, place_device: torch.device) -> Fit:
    return Fit(
        config=settings.config,
        environment=environment.read(accelerator=None if place_device.type == "cpu" else place_device.type),
        step=recorder.run.step,
        memory=memory.reading(lambda: device.allocated_bytes(place_device)),
    )
