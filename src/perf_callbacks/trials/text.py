"""Table that `perf-callbacks try` prints, and the JSON object with the same values."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perf_callbacks.trials.gains import CLOSE, OTHER, SAME, Gain, compared, gains
from perf_callbacks.trials.plan import FAILED, RESUMES, SAVES, Identity, TrialOutcome
from perf_callbacks.trials.remedies import Candidate

BASE, TOGETHER = "as it is", "together"
"""The setting without any change, and the setting with several remedies at once."""

NO_TIME = "its steps took no time outside of evaluations and checkpoints"
NOT_APPLIED = "nothing in the program could be changed"

REFUSED = {
    SAVES: "the program writes {}. With --yes, each trial goes on, and known functions that save do nothing",
    RESUMES: "the program resumes from a checkpoint at {}. With --yes, trials start there or without the checkpoint",
    FAILED: "{}",
}


@dataclass(kw_only=True, slots=True)
class TrialResults:
    """Outcomes of all trials of a program so far."""

    program: str
    candidates: Sequence[Candidate] = ()
    short: tuple[int, float] | None = None
    """`TrialOutcome.short` of the probe."""
    rounds: list[dict[str, TrialOutcome]] = field(default_factory=list)
    """The complete rounds: outcomes by setting."""
    partial: dict[str, TrialOutcome] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False
    together: tuple[str, ...] = ()
    launches: int = 0
    seconds: float = 0.0
    identity: Identity | None = None

    @property
    def settings(self) -> list[str]:
        names = [BASE, *[one.title for one in self.candidates], TOGETHER]
        return [name for name in names if self.rounds and all(name in one for one in self.rounds)]

    def gains(self) -> dict[str, Gain]:
        """Without intervals before two rounds are complete."""
        rounds = self.rounds or ([self.partial] if BASE in self.partial else [])
        names = self.settings or [*self.partial]
        times = {name: [one[name].step_seconds or 0.0 for one in rounds] for name in names}
        return gains(times, BASE) if rounds else {}

    def losses(self, name: str) -> str:
        rounds = self.rounds or [self.partial]
        base = [one[BASE].losses for one in rounds]
        if any(compared(base[0], other) == OTHER for other in base[1:]):
            return "differs from run to run"
        found = [compared(base[0], one[name].losses) for one in rounds]
        worst = next((kind for kind in (OTHER, CLOSE, SAME) if kind in found), None)
        titles = self.together if name == TOGETHER else (name,)
        if worst == OTHER and any(one.remedy.alters for one in self.candidates if one.title in titles):
            return "changed, by design"
        return worst or "unknown"

    def helpful(self) -> list[Candidate]:
        found = self.gains()
        helps = [one for one in self.candidates if one.title in found and found[one.title].sure]
        return sorted(helps, key=lambda one: -found[one.title].factor)


def lines(result: TrialResults) -> Iterable[str]:
    """Yield the table, then the settings without a time, then the lines of code to write."""
    found = result.gains()
    base = [one[BASE].step_seconds or 0.0 for one in result.rounds or [result.partial] if BASE in one]
    if not base:
        yield f"{result.program}: nothing was measured."
    else:
        yield from _table(result, found, sum(base) / len(base))
    for name, why in result.failed.items():
        yield f"{name}: no result, {why}"
    helps = result.helpful()
    if helps:
        yield ""
        yield "Write:"
        yield from [f"  {one.line}" for one in helps]
    elif result.rounds and len(found) > 0:
        yield ""
        yield "No change helps for sure." if len(result.rounds) > 1 else "One round shows no interval: nothing is sure."


def _table(result: TrialResults, found: Mapping[str, Gain], base_seconds: float) -> Iterable[str]:
    width = max([len(name) for name in [BASE, *found]])
    yield f"{'':<{width}}  {'step time':>9}  {'faster':>6}  {'95 % interval':<14}  loss"
    yield f"{BASE:<{width}}  {_milliseconds(base_seconds):>9}"
    for name, gain in found.items():
        ends = "" if gain.low is None or gain.high is None else f"{gain.low:.2f} to {gain.high:.2f}"
        time = _milliseconds(base_seconds / gain.factor)
        yield f"{name:<{width}}  {time:>9}  {gain.factor:>5.2f}x  {ends:<14}  {result.losses(name)}".rstrip()
    if TOGETHER in found:
        yield f"{TOGETHER} is: {'; '.join(result.together)}"


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.3g} ms" if seconds < 1 else f"{seconds:,.3g} s"


def refused(outcome: TrialOutcome) -> str:
    return REFUSED.get(outcome.why or FAILED, "{}").format(outcome.place)


def as_json(result: TrialResults) -> dict[str, Any]:
    """Times are in seconds, and gains are factors."""
    found = result.gains()
    by_title = {one.title: one for one in result.candidates}
    rounds = result.rounds or [result.partial]
    settings = []
    for name in result.settings or [*result.partial]:
        gain, candidate = found.get(name), by_title.get(name)
        settings.append(
            {
                "setting": name,
                "remedy": candidate.remedy.name if candidate is not None else None,
                "value": candidate.value if candidate is not None else None,
                "line": candidate.line if candidate is not None else None,
                "step_seconds": [one[name].step_seconds for one in rounds],
                "faster": gain.factor if gain is not None else None,
                "low": gain.low if gain is not None else None,
                "high": gain.high if gain is not None else None,
                "called_for": candidate.called_for if candidate is not None else None,
                "promised": candidate.promised if candidate is not None else None,
                "loss": result.losses(name) if name != BASE else None,
            }
        )
    return {
        "program": result.program,
        "settings": settings,
        "together": [*result.together],
        "failed": dict(result.failed),
        "interrupted": result.interrupted,
        "write": [one.line for one in result.helpful()],
        "launches": result.launches,
        "seconds": round(result.seconds, 1),
    }
