"""Verdict of a job. Rank 0 reads the findings of all ranks when the fit ends and for each interim summary.

Each rank writes notes of its findings into a channel, the final one at its end. Where this is missing after
`WAIT_SECONDS`, an earlier note counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from perf_callbacks.advice import stall, table
from perf_callbacks.kernel.clock import monotonic, sleep
from perf_callbacks.kernel.records.codec import pack, unpack
from perf_callbacks.kernel.records.fit_records import Finding
from perf_callbacks.kernel.records.shares import NOTABLE
from perf_callbacks.kernel.records.summary_parts import StragglerSummary
from perf_callbacks.ranks.channels import Channel, ChannelHandler
from perf_callbacks.ranks.exchange import Exchange
from perf_callbacks.stragglers.peers import DATA, DEVICE, GC, HOST, STEAL
from perf_callbacks.stragglers.text import rank_names

CHANNEL = "findings"

WAIT_SECONDS, LOOK_SECONDS = 0.5, 0.02
"""Rank 0 waits for the final notes at most `WAIT_SECONDS`, and reads every `LOOK_SECONDS`."""

FEW = 64
"""In a job with more ranks, notes are written only at the end."""

OWN_WORDS: Mapping[str, frozenset[str]] = {
    DATA: frozenset({"data"}),
    GC: frozenset({"gc"}),
    STEAL: frozenset({"cpu"}),
    DEVICE: frozenset({"throttle"}),
    HOST: frozenset({"host", "sync", "memory", "checkpoint", "evaluation"}),
}
"""Causes of findings with the same problem as a cause in the comparison of ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FindingNote:
    """Findings of one rank."""

    findings: tuple[Finding, ...] = ()
    last: bool = False


class FindingNotes(ChannelHandler):
    """Writes this rank's findings into the channel. Rank 0 reads those of the others."""

    def __init__(self) -> None:
        self.mine: tuple[Finding, ...] = ()
        self.others: Mapping[int, tuple[Finding, ...]] = {}
        self._written: tuple[Finding, ...] = ()
        self._asked = self._reading = False
        self._over = 0

    def set(self, findings: tuple[Finding, ...], exchange: Exchange) -> None:
        """On rank 0, also ask for newer findings of the other ranks."""
        self.mine, self._asked = findings, True
        exchange.wake()

    def gather(self, exchange: Exchange, ranks: int) -> None:
        deadline, self._reading = monotonic() + WAIT_SECONDS, True
        while self._over < ranks - 1 and monotonic() < deadline and exchange.failure is None:
            exchange.wake()
            sleep(LOOK_SECONDS)
        self._reading = False

    def round(self, channel: Channel, now: float) -> float | None:  # noqa: ARG002 notes have no time
        """Rank 0 writes nothing: it reads the notes of all ranks if `set` or `gather` asked for them."""
        asked, self._asked = self._asked or self._reading, False
        if channel.rank:
            if self.mine != self._written and channel.world_size <= FEW:
                self._written = self.mine
                channel.put(pack(FindingNote(findings=self.mine)))
        elif asked:
            notes = {rank: unpack(FindingNote, text) for rank, text in channel.notes().items() if rank != channel.rank}
            written = {rank: note for rank, note in notes.items() if note is not None}
            self.others = {rank: note.findings for rank, note in written.items()}
            self._over = sum([note.last for note in written.values()])
        return LOOK_SECONDS if self._reading else None

    def leave(self, channel: Channel) -> None:
        if channel.rank:
            channel.put(pack(FindingNote(findings=self.mine, last=True)))


def verdict(
    own: Sequence[Finding],
    others: Mapping[int, Sequence[Finding]],
    stragglers: StragglerSummary | None,
) -> tuple[Finding, ...]:
    """Return the findings of a job, worst first. Findings of `others` with a cause in `own` are left out."""
    slowest, cause_measured, *_ = next(stragglers.named(), ((), "")) if stragglers is not None else ((), "")
    results, causes = [*own], {finding.cause for finding in own}
    ranks_of: dict[str, dict[int, Finding]] = {}
    for rank, findings in others.items():
        for finding in findings:
            if finding.share is not None and finding.share >= NOTABLE:
                ranks_of.setdefault(finding.cause, {}).setdefault(rank, finding)
    place = next((place for place, finding in enumerate(results) if finding.cause == "straggler"), None)
    fitting: list[Finding] = []  # findings of slow ranks that fit the measured cause
    for cause, by_rank in ranks_of.items():
        worst = max(by_rank.values(), key=lambda finding: finding.share or 0.0)
        if place is not None and {*by_rank} <= {*slowest} and cause in OWN_WORDS.get(cause_measured, ()):
            fitting.append(worst)
        elif cause not in causes:
            who = rank_names(sorted(by_rank))
            results.append(replace(worst, evidence=f"{who[0].upper()}{who[1:]}: {worst.evidence}"))
    if place is not None and fitting:  # a slow rank knows its line, and a more exact remedy
        worst = max(fitting, key=lambda finding: finding.share or 0.0)
        evidence = results[place].evidence + (f", mostly at {worst.line}" if worst.line is not None else "")
        results[place] = replace(results[place], evidence=evidence, remedy=worst.remedy, line=worst.line)
    return table.ordered(results, hangs=bool(own) and own[0].cause == stall.CAUSE)
