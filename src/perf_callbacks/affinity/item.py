"""The checklist item `affinity`: a rank runs on those CPUs of its set that are near its GPU."""

import weakref

from typing_extensions import override

from perf_callbacks.kernel.fit.environment import Environment
from perf_callbacks.kernel.fit.item import ADVISED, ALREADY, NOT_APPLICABLE, SKIPPED, ActiveItem, Fit, Item
from perf_callbacks.kernel.plural import plural
from perf_callbacks.kernel.process.cpu_masks import AFFINITY
from perf_callbacks.kernel.process.cpu_sets import Choice, CpuFacts, Cpus, choose, ranges
from perf_callbacks.kernel.records.fit_records import APPLIED, Checklist
from perf_callbacks.kernel.settings.config import PerfConfig

SPARE = 2  # CPUs that `affinity="auto"` wants for training threads, besides one per loader worker


SLUG = "affinity"


def decide(environment: Environment, config: PerfConfig) -> Checklist:
    facts = environment.cpu_facts
    if facts is None:
        why = environment.cpus_unknown or "this system does not bind threads to CPUs"
        return Checklist(item=SLUG, status=NOT_APPLICABLE, why=why)
    choice = choose(config.affinity, facts) if config.affinity != "off" else Choice(None, "affinity=off")
    status, after, addition = _outcome(choice.cpus, facts, config)
    return Checklist(item=SLUG, status=status, before=_before(facts), after=after, why=choice.why + addition)


def _outcome(cpus: Cpus | None, facts: CpuFacts, config: PerfConfig) -> tuple[str, str | None, str]:
    """Return the status, the new state, and a text to append to the reason."""
    if cpus is None:
        return (SKIPPED if config.affinity == "off" else NOT_APPLICABLE), None, ""
    if not cpus:
        return ADVISED, "start the rank there", ""
    if cpus == facts.mask:
        return ALREADY, None, ""
    if len(cpus) >= facts.workers + SPARE:
        return APPLIED, _named(cpus), ""
    workers = f"{plural(facts.workers, 'worker')} and " if facts.workers else ""
    room = f"; {plural(len(cpus), 'CPU')} for {workers}the training"
    return (ADVISED, "affinity=node", room) if config.affinity == "auto" else (APPLIED, _named(cpus), room)


def _named(cpus: Cpus) -> str:
    return f"CPU{'' if len(cpus) == 1 else 's'} {ranges(cpus)}"


def _before(facts: CpuFacts) -> str:
    bound = " by the launcher" if facts.bound else ""
    quota = f", {facts.machine.quota:g} CPUs' worth of time" if facts.machine.quota is not None else ""
    return _named(facts.mask) + bound + quota


class AffinityClaim:
    """Claim by which a fit binds the threads of the process to CPUs."""


class CpuBinding(ActiveItem):
    """Binds all threads of the process to CPUs, until `closed`."""

    slug = SLUG

    def __init__(self, fit: Fit) -> None:
        super().__init__()
        facts = fit.environment.cpu_facts
        cpus = choose(fit.config.affinity, facts).cpus if facts is not None else None
        self._claim = AffinityClaim()
        self._let_go = weakref.finalize(self, AFFINITY.let_go, self._claim)  # at exit too
        AFFINITY.bind(self._claim, cpus or frozenset())

    @override
    def closed(self) -> None:
        super().closed()
        AFFINITY.let_go(self._claim)
        self._let_go.detach()


ITEM = Item(SLUG, decide, CpuBinding)
