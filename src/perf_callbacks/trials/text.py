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
        names = [BASE, *[candidate.title for candidate in self.candidates], TOGETHER]
        return [name for name in names if self.rounds and all(name in outcomes for outcomes in self.rounds)]

    def gains(self) -> dict[str, Gain]:
        """Without intervals before two rounds are complete."""
        rounds = self.rounds or ([self.partial] if BASE in self.partial else [])
        names = self.settings or [*self.partial]
        times = {name: [outcomes[name].step_seconds or 0.0 for outcomes in rounds] for name in names}
        return gains(times, BASE) if rounds else {}

    def losses(self, name: str) -> str:
        rounds = self.rounds or [self.partial]
        base = [outcomes[BASE].losses for outcomes in rounds]
        if any(compared(base[0], other) == OTHER for other in base[1:]):
            return "differs from run to run"
        likenesses = [compared(base[0], outcomes[name].losses) for outcomes in rounds]
        worst = next((kind for kind in (OTHER, CLOSE, SAME) if kind in likenesses), None)
        titles = self.together if name == TOGETHER else (name,)
        if worst == OTHER and any(
            candidate.remedy.alters for candidate in self.candidates if candidate.title in titles
        ):
            return "changed, by design"
        return worst or "unknown"

    def helpful(self) -> list[Candidate]:
        gains = self.gains()
        helps = [candidate for candidate in self.candidates if candidate.title in gains and gains[candidate.title].sure]
        return sorted(helps, key=lambda candidate: -gains[candidate.title].factor)


def lines(result: TrialResults) -> Iterable[str]:
    """Yield the table, then the settings without a time, then the lines of code to write."""
    gains = result.gains()
    base = [outcomes[BASE].step_seconds or 0.0 for outcomes in result.rounds or [result.partial] if BASE in outcomes]
    if not base:
        yield f"{result.program}: nothing was measured."
    else:
        yield from _table(result, gains, sum(base) / len(base))
    for name, why in result.failed.items():
        yield f"{name}: no result, {why}"
    helps = result.helpful()
    if helps:
        yield ""
        yield "Write:"
        yield from [f"  {candidate.line}" for candidate in helps]
    elif result.rounds and len(gains) > 0:
        yield ""
        yield "No change helps for sure." if len(result.rounds) > 1 else "One round shows no interval: nothing is sure."


def _table(result: TrialResults, gains: Mapping[str, Gain], base_seconds: float) -> Iterable[str]:
    width = max([len(name) for name in [BASE, *gains]])
    yield f"{'':<{width}}  {'step time':>9}  {'faster':>6}  {'95 % interval':<14}  loss"
    yield f"{BASE:<{width}}  {_milliseconds(base_seconds):>9}"
    for name, gain in gains.items():
        ends = "" if gain.low is None or gain.high is None else f"{gain.low:.2f} to {gain.high:.2f}"
        time = _milliseconds(base_seconds / gain.factor)
        yield f"{name:<{width}}  {time:>9}  {gain.factor:>5.2f}x  {ends:<14}  {result.losses(name)}".rstrip()
    if TOGETHER in gains:
        yield f"{TOGETHER} is: {'; '.join(result.together)}"


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.3g} ms" if seconds < 1 else f"{seconds:,.3g} s"


def refused(outcome: TrialOutcome) -> str:
    return REFUSED.get(outcome.why or FAILED, "{}").format(outcome.place)


def as_json(result: TrialResults) -> dict[str, Any]:
    """Times are in seconds, and gains are factors."""
    gains = result.gains()
    by_title = {candidate.title: candidate for candidate in result.candidates}
    rounds = result.rounds or [result.partial]
    settings = []
    for name in result.settings or [*result.partial]:
        gain, candidate = gains.get(name), by_title.get(name)
        settings.append(
            {
                "setting": name,
                "remedy": candidate.remedy.name if candidate is not None else None,
                "value": candidate.value if candidate is not None else None,
                "line": candidate.line if candidate is not None else None,
                "step_seconds": [outcomes[name].step_seconds for outcomes in rounds],
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
        "write": [candidate.line for candidate in result.helpful()],
        "launches": result.launches,
        "seconds": round(result.seconds, 1),
    }
