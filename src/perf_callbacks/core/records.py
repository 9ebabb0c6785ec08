"""What a run leaves behind, as frozen records that go to JSON and back.

A journal is one JSON object per line, with `type` and `t`. A torn or foreign line is skipped, never fatal; keys that
this version doesn't know are dropped.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

SCHEMA = 1
"""Version of the journal. It grows when a key changes its meaning or goes away."""

Number = int | float


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Opens each fit and each attempt. `t` counts from here."""

    run_id: str
    """New for each fit, kept by a resumed one."""
    attempt: int
    """1 for the first start, one more for each resume."""
    step: int
    """Optimizer steps done before this attempt."""
    rank: int
    world_size: int
    device: str
    """What was measured on, such as "cpu" or "NVIDIA H200"."""
    timeline: str
    """"host" or "device": the clock behind steps and stages."""
    door: str
    """The way in: "transformers" or "loop"."""
    versions: Mapping[str, str]
    config: Mapping[str, Any]
    from_env: tuple[str, ...] = ()
    """Configuration fields that the environment set."""
    started_unix: float
    """Wall clock, for people; no duration is computed from it."""
    schema: int = SCHEMA


@dataclass(frozen=True, kw_only=True, slots=True)
class Checklist:
    """One item of the startup checklist. Of several records of one item the last one holds."""

    item: str
    status: str
    """applied, already so, advised, not applicable, skipped, failed."""
    before: str | None = None
    """What was found. None: there is nothing to say, as in the next two."""
    after: str | None = None
    """What it is made, or would be where that is advised."""
    why: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Amounts:
    """What went through the model. None: unknown."""

    samples: int | None = 0
    tokens: int | None = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """Up to 64 optimizer steps as columns of equal length. A stage that can't be known is an empty column."""

    step: tuple[int, ...]
    step_time: tuple[float | None, ...]
    """Seconds, as the stages; None for a step whose device events were lost."""
    data_time: tuple[float | None, ...] = ()
    forward_time: tuple[float | None, ...] = ()
    backward_time: tuple[float | None, ...] = ()
    optimizer_time: tuple[float | None, ...] = ()
    gc_time: tuple[float | None, ...] = ()
    other_time: tuple[float | None, ...] = ()
    model_flops: tuple[float | None, ...] = ()
    samples: tuple[int | None, ...] = ()
    tokens: tuple[int | None, ...] = ()
    excluded: tuple[str | None, ...] = ()
    """Why a step is in no row: "first", "restart", "evaluation", "checkpoint", "lost"; None for those that are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """What was logged, and at which step."""

    step: int
    metrics: Mapping[str, Number]


@dataclass(frozen=True, kw_only=True, slots=True)
class Gc:
    """One garbage collection."""

    step: int
    """The optimizer step it fell in."""
    stage: str
    """The stage it fell in, or "aside" for evaluation and checkpoints, "elsewhere" for other threads."""
    generation: int
    start: float
    seconds: float
    collected: int
    automatic: bool
    """False: somebody called `gc.collect`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Time that belongs to no step."""

    kind: str
    """evaluation, checkpoint."""
    step: int
    """Optimizer steps done when it began."""
    start: float
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Some optimizer steps over all ranks, put together from what each of them did. In rank 0's file."""

    first_step: int
    last_step: int
    """By the trainer's count, as `first_step`; both are in it."""
    steps: int
    """Those of them that are in rows: what follows is about these."""
    ranks: int
    seconds: float
    """Of the slowest rank: the job is not through before it."""
    samples: int | None
    """Over all ranks, as the next two. None: unknown."""
    tokens: int | None
    useful_tokens: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """A fit in figures, so far or at its end. None: unknown."""

    run_id: str
    attempt: int
    step: int
    """The trainer's count of optimizer steps."""
    steps: int
    """Optimizer steps of this attempt."""
    included_steps: int
    """Those that are in rows: without the first, and without those that an evaluation or a checkpoint fell in."""
    lost_steps: int = 0
    """Steps without a time: their device events were lost."""
    included_seconds: float
    """Length of the included steps."""
    stage_seconds: Mapping[str, float]
    """Their stages; empty where unknown."""
    span_seconds: Mapping[str, float] = field(default_factory=dict)
    """Time outside of steps, by kind."""
    samples: int | None
    """Of all steps of this attempt, as `tokens`."""
    tokens: int | None
    included_samples: int | None
    """Of the included steps, as the next two: for rates."""
    included_tokens: int | None
    included_useful_tokens: int | None
    total_samples: int | None
    """Of all attempts so far, counted by the checkpoints between them; as the next."""
    total_tokens: int | None
    gc_collections: tuple[int, ...] | None
    """Collections by generation, None where collections are not timed; as the next two."""
    gc_seconds: float | None
    gc_longest: float | None
    failure: str | None = None
    """Why measuring stopped early, where it did."""

    @property
    def step_time(self) -> float | None:
        """Seconds per included step."""
        return self.included_seconds / self.included_steps if self.included_steps else None


Record = Run | Checklist | Steps | Row | Gc | Span | Window | Summary

_KINDS: tuple[type[Record], ...] = (Run, Checklist, Steps, Row, Gc, Span, Window, Summary)
_TYPES = {kind.__name__.lower(): kind for kind in _KINDS}

_FIELDS = {kind: tuple(item.name for item in fields(kind)) for kind in _TYPES.values()}


@dataclass(frozen=True, slots=True)
class Entry:
    """A record and when it was written, in seconds since its run began."""

    t: float
    record: Record


def encode(entry: Entry) -> str:
    """One line of a journal, without its end. Columns of times are kept to a tenth of a microsecond."""
    record = entry.record
    parts = [f'"type":"{type(record).__name__.lower()}"', f'"t":{entry.t:.6f}']
    for name in _FIELDS[type(record)]:
        value = getattr(record, name)
        if value != ():
            parts.append(f'"{name}":{_times(value) if name.endswith("_time") else _json(value)}')
    return "{" + ",".join(parts) + "}"


def _times(values: tuple[float | None, ...]) -> str:
    if None in values:
        return _json([value if value is None else round(value, 7) for value in values])
    return "[" + (("%.7f," * len(values)) % values)[:-1] + "]"


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def decode(line: str) -> Entry | None:
    """The entry on one line; None where the line is torn, foreign, or of a type that came later."""
    try:
        values = json.loads(line)
        kind = _TYPES[values.pop("type")]
        t = float(values.pop("t"))
        return Entry(t, kind(**{name: _frozen(value) for name, value in values.items() if name in _FIELDS[kind]}))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def entries(lines: Iterable[str]) -> Iterator[Entry]:
    """The entries of a journal, in order."""
    return (entry for entry in map(decode, lines) if entry is not None)


def attempts(journal: Iterable[Entry]) -> list[list[Entry]]:
    """A journal cut into its fits and attempts, each from its `Run` on. What precedes the first one is dropped."""
    parts: list[list[Entry]] = []
    for entry in journal:
        if isinstance(entry.record, Run):
            parts.append([])
        if parts:
            parts[-1].append(entry)
    return parts


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
