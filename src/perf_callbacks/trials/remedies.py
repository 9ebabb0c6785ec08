"""Table of the remedies that a trial can apply: the changes that the lines of code in findings would make."""

import re
from collections.abc import Collection
from dataclasses import dataclass

from perf_callbacks.kernel.records.fit_records import Finding
from perf_callbacks.trials.plan import Changes, TrialOutcome


@dataclass(frozen=True, kw_only=True, slots=True)
class Remedy:
    """One kind of change that a trial can make."""

    name: str
    group: str
    advice: str
    """Regular expression for a finding's line. Its first group captures the number of the change."""
    title: str
    """With `{}` in place of the number."""
    line: str = ""
    """What the user should write if no finding gives a line."""
    alters: bool = False
    """The losses may change, because the arithmetic or the order of samples changes."""
    asked: bool = False
    """Tried only if `--only` selects it."""


REMEDIES: tuple[Remedy, ...] = (
    Remedy(
        name="workers", group="loader", advice=r"num_workers=(\d+)(?!.*(?:persistent_workers|prefetch_factor))",
        title="loader: {} workers", line="DataLoader(num_workers={})",
    ),
    Remedy(
        name="prefetch", group="loader", advice=r"prefetch_factor=(\d+)", title="loader: prefetch {}",
        line="DataLoader(prefetch_factor={})",
    ),
    Remedy(
        name="persistence", group="loader", advice=r"persistent_workers=True", title="loader: persistent",
        line="DataLoader(persistent_workers=True)",
    ),
    Remedy(
        name="pinning", group="loader", advice=r"(?!)", title="loader: pinned",
        line="PerfCallback(), which pins batches",
    ),
    Remedy(
        name="optimizer", group="optimizer", advice=r"fused=True|_fused\"", title="optimizer: fused",
        line="torch.optim.AdamW(..., fused=True)",
    ),
    Remedy(
        name="attention", group="attention", advice=r"attn_implementation=\"sdpa\"", title="attention: SDPA",
        line='from_pretrained(..., attn_implementation="sdpa")',
    ),
    Remedy(
        name="precision", group="precision", advice=r"set_float32_matmul_precision", title="precision: high",
        line='torch.set_float32_matmul_precision("high")', alters=True,
    ),
    Remedy(
        name="threads", group="threads", advice=r"(?:OMP_NUM_THREADS=|set_num_threads\()(\d+)", title="threads: {}",
        line="OMP_NUM_THREADS={}",
    ),
    Remedy(
        name="gc", group="gc", advice=r"GC=sync", title="gc: on a schedule",
        line="PerfCallback(), which collects garbage on a schedule",
    ),
    Remedy(
        name="affinity", group="affinity", advice=r"(?!)", title="affinity: near the device",
        line="PerfCallback(), which binds the process to these CPUs",
    ),
    Remedy(
        name="logging", group="logging", advice=r"(?:logging_steps|log_every_n_steps)=(\d+)",
        title="logging: every {}",
    ),
    Remedy(
        name="nan_filter", group="logging", advice=r"logging_nan_inf_filter=False", title="logging: no NaN filter",
    ),
    Remedy(
        name="checkpointing", group="recompute", advice=r"(?:activation|gradient)_checkpointing",
        title="checkpointing: off",
    ),
    Remedy(
        name="rebalance", group="rebalance", advice=r"batch_rebalance", title="batches: rebalanced",
        alters=True,
    ),
    Remedy(
        name="compile", group="compile", advice=r"torch_compile=True|torch\.compile\(model\)", title="torch.compile",
        line="torch.compile(model)", asked=True,
    ),
)  # fmt: skip

GROUPS = tuple(dict.fromkeys([remedy.group for remedy in REMEDIES]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One remedy for a program, with its number and its line of code."""

    remedy: Remedy
    value: int | None
    line: str
    promised: tuple[float, float] | None = None
    called_for: bool = True
    """False: no finding calls for the remedy; the user selected it with `--only`."""

    @property
    def title(self) -> str:
        title = self.remedy.title.format(self.value)
        return title.replace("1 workers", "1 worker") if self.value == 1 else title


def of_finding(finding: Finding) -> Candidate | None:
    """None if trials have no such remedy."""
    for remedy in REMEDIES:
        match = re.search(remedy.advice, finding.remedy)
        if match is not None:
            value = int(match[1]) if match.re.groups and match[1] is not None else None
            return Candidate(remedy=remedy, value=value, line=finding.remedy, promised=_promised(finding))
    return None


def _promised(finding: Finding) -> tuple[float, float] | None:
    if finding.share is None or finding.share >= 1:
        return None
    return 1 / (1 - (finding.low or 0.0)), 1 / (1 - finding.share)


def candidates(probe: TrialOutcome, only: Collection[str], cpus: int) -> list[Candidate]:
    """Return the remedies that the findings of a probe call for, and those that `--only` selects.

    If `only` names no group, all remedies that don't need `--only` are allowed.
    """
    called_for = [candidate for candidate in map(of_finding, probe.findings) if candidate is not None]
    results = []
    for remedy in REMEDIES:
        name, chosen = remedy.name, remedy.group in only
        if not chosen and (only or remedy.asked):
            continue
        if probe.own_callback and name in {"gc", "affinity", "pinning"}:
            continue
        candidate = next((wanted for wanted in called_for if wanted.remedy is remedy), None)  # the first is the largest
        if candidate is None and (name in probe.applied or (chosen and name in DEFAULTS)):
            number = max(1, cpus - 1) if name in NUMBERED else None
            line = remedy.line.format(number)
            candidate = Candidate(remedy=remedy, value=number, line=line, called_for=name in probe.applied)
        if candidate is not None:
            results.append(candidate)
    return results


NUMBERED = frozenset({"workers", "threads"})
"""Remedies of `DEFAULTS` with a number, which the number of CPUs determines."""

DEFAULTS = NUMBERED | {"optimizer", "precision", "gc", "compile"}


def settings(changes: Changes, *, own_callback: bool) -> dict[str, str]:
    """Turn off automatic changes that the trial doesn't measure."""
    variables = {
        "PERF_CALLBACKS_CHECKLIST": "on",
        "PERF_CALLBACKS_GC": "sync" if "gc" in changes else "observe",
        "PERF_CALLBACKS_AFFINITY": "auto" if "affinity" in changes else "off",
        "PERF_CALLBACKS_LOADERS": "apply" if "pinning" in changes else "off",
    }
    threads = {"OMP_NUM_THREADS": str(changes["threads"])} if "threads" in changes else {}
    return threads if own_callback else variables | threads
