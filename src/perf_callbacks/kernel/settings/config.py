"""Settings that users choose. They are checked once, and errors are in plain words."""

import re
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from perf_callbacks.kernel.settings import output_directory
from perf_callbacks.kernel.settings.gone import GONE


class ConfigError(ValueError):
    """Error of an illegal setting. The message names the setting, the given value and the accepted values."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def printable(text: str) -> str:
    r"""Escape unprintable characters, some of which are commands to a terminal.

    >>> print(printable("PERF_CALLBACKS_" + chr(27) + "[2J"))
    PERF_CALLBACKS_\x1b[2J
    """
    return "".join([letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text])


def kind(value: object) -> str:
    """Return a noun phrase for a value of the wrong type, for messages.

    >>> kind({}), kind(dict)
    ('a dict', 'the class dict')
    """
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


@dataclass(frozen=True, kw_only=True, slots=True)
class PerfConfig:
    """Settings of all integrations.

    Each field can also be set from outside as `PERF_CALLBACKS_<FIELD>`, which overrides the code.

    >>> PerfConfig(gc="observe").gc
    'observe'
    >>> PerfConfig(gc="sinc")
    Traceback (most recent call last):
        ...
    perf_callbacks.kernel.settings.config.ConfigError: gc: got 'sinc', wanted one of sync, freeze, observe, off.
    """

    enabled: bool = True
    """Measure the training. False leaves the callback in place without any effect."""
    flops: Literal["count", "estimate", "off"] = "count"
    """Source of a step's FLOPs. count: count each operation of some steps. estimate: use a copy of the model on fake
    tensors, or a formula. off: no FLOPs."""
    peak_tflops: str | None = None
    """Dense peak of the device in TFLOPS, such as "989.5", or by dtype, such as "bf16=989.5,fp32=67". None: use the
    table of known devices."""
    measure_peak: Literal["auto", "on", "off"] = "auto"
    """Measure the peak with matmuls. auto: measure it on a CPU and on devices that are not in the table of known
    devices."""
    checklist: Literal["on", "off"] = "on"
    """on: apply the startup checklist. off: no checklist."""
    skip: str = ""
    """Comma-separated list of checklist items to leave out: gc, loaders, affinity."""
    gc: Literal["sync", "freeze", "observe", "off"] = "sync"
    """sync: collect garbage on all ranks at the same step. freeze: freeze long-lived objects. observe: only time
    collections. off: do nothing."""
    gc_interval: int = 100
    """Number of optimizer steps between two collections of young objects."""
    affinity: Literal["auto", "node", "off"] = "auto"
    """CPUs of a rank. node: the CPUs of its GPU's NUMA node. auto: like node if the node has enough CPUs for the
    loaders' workers, else no change. off: no change."""
    loaders: Literal["apply", "advise", "off"] = "apply"
    """apply: pin memory and copy without blocking. advise: only advise these changes. off: do nothing."""
    exchange: Literal["on", "off"] = "on"
    """Exchange the amounts of work between the ranks of a job. The exchange gives rates of the whole job, finds slow
    ranks, and lets all ranks collect garbage at the same step. Rank 0's setting applies to all ranks."""
    stragglers: Literal["on", "off"] = "on"
    """Add the times of each step to the exchange, to find slow ranks. Rank 0's setting applies to all ranks."""
    window: int = 50
    """Number of optimizer steps between two exchanges."""
    stall_after: str = "auto"
    """A stall is reported if no step ends for this many seconds, such as "120". off: no stall is reported. auto: 60
    seconds or the time of 20 median steps, whichever is longer. The limit is ten times as long for an evaluation, a
    checkpoint and each of the first three steps."""
    metrics: Literal["main", "all"] = "all"
    """Metrics that loggers get: the five metrics of the console, or all."""
    console: Literal["main", "all", "off"] = "main"
    """Metrics on the framework's console and progress bar. main: step time, data time, tokens or samples per second,
    TFLOPS and MFU. all: all metrics that loggers get. off: none."""
    journal: bool = True
    """Write `<output_dir>/perf_callbacks/rank<k>.jsonl`."""
    report: bool = False
    """Write `<output_dir>/perf_callbacks/report.html` when training ends."""
    output_dir: str | None = None
    """Directory of the journal and the report. `{job}`, `{run}` and `{host}` are replaced. `{{` stands for the
    character `{`. None: use the trainer's output directory or, in Lightning, the directory of rank 0's logger. If there
    is neither, use the working directory."""
    baseline: str | None = None
    """Speed with which the first steps of this run are compared. auto: the five most recent runs of the same program.
    None: no comparison."""
    profile: str = "off"
    """Steps to record with torch.profiler on a rank, and to explain in the journal. "20:3": three steps from step 20,
    on rank 0. auto: three steps on a slow rank after a slow step or a straggler is confirmed, at most three times per
    fit. off: no step."""
    max_journal_mb: int = 256
    """Size of a rank's journal, in MB, beyond which steps and short garbage collections are no longer written."""

    def __post_init__(self) -> None:
        for name in ("peak_tflops", "stall_after"):
            value: Any = getattr(self, name)
            # The field is no `str | float`: transformers' parser refuses it.
            if type(value) in {int, float} and not is_huge(value):
                text = format(value, ".15g")
                object.__setattr__(self, name, text if rules()[name].allows(text) else value)
        for name, rule in rules().items():
            value = getattr(self, name)
            if not rule.allows(value):
                raise ConfigError(f"{name}: {refusal(name, value)}")


def refusal(name: str, value: object) -> str:
    """Return the end of a message about a value that the field doesn't accept."""
    instead = GONE.get(f"{name}={value}") if isinstance(value, str) else None
    return f"{value!r} is gone: {instead}." if instead else f"got {shown(value)}, wanted {rules()[name].wanted}."


def shown(value: object) -> str:
    text = f"a number of {MOST_DIGITS + 1} digits or more" if is_huge(value) else repr(value)
    return text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + "…"


def is_huge(value: object) -> bool:
    return isinstance(value, int) and abs(value) >= 10**MOST_DIGITS


@dataclass(frozen=True, slots=True)
class Rule:
    """Values that a field accepts, by its annotation."""

    kind: Literal["choice", "flag", "count", "text"]
    wanted: str
    choices: tuple[str, ...] = ()
    optional: bool = False
    pattern: str | None = None

    def allows(self, value: object) -> bool:
        if self.kind == "flag":
            return isinstance(value, bool)
        if self.kind == "count":
            return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 10**MOST_DIGITS
        if value is None:
            return self.optional
        if not isinstance(value, str):
            return False
        if self.kind == "choice":
            return value in self.choices
        return self.pattern is None or re.fullmatch(self.pattern, value) is not None

    def parse(self, text: str) -> object:
        """Return the string itself if it can't be parsed."""
        word = text.strip()
        if self.kind == "flag":
            return FLAGS.get(word.lower(), word)
        if self.kind == "count":
            return int(word) if word.isdecimal() and len(word) <= MOST_DIGITS else word
        if self.optional and word.lower() in {"", "none"}:
            return None
        return word


LONGEST_TEXT = 300  # characters of a name, a value or a sentence of unknown origin
LONGEST_RECORDED = 10_000  # of a whole text in a journal: an error message may hold a whole batch

MOST_DIGITS = 18
"""Python parses up to 4,300 digits, but clocks and files support fewer."""

ITEMS = ("gc", "loaders", "affinity")

FLAGS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}

_NUMBER = r"(?=[\d.]*[1-9])\d+(\.\d+)?"
_DTYPE = "(bf16|fp16|half|tf32|fp32|fp64|fp8|fp4|bfloat16|float(4|8|16|32|64)|tfloat32)"
_ITEMS = r" *({0})?( *, *({0})?)* *".format("|".join(ITEMS))
_PATTERNS = {
    "peak_tflops": (
        rf"{_NUMBER}|{_DTYPE}={_NUMBER}(,{_DTYPE}={_NUMBER})*",
        'TFLOPS above 0 such as "989.5" or "bf16=989.5,fp32=67", or None',
    ),
    "stall_after": (rf"auto|off|{_NUMBER}", 'auto, off, or seconds above 0 such as "120"'),
    "skip": (_ITEMS, f"checklist items separated by commas: {', '.join(ITEMS)}"),
    "baseline": ("auto", "auto or None. `perf-callbacks compare` and `perf-callbacks scaling` take other runs"),
    "profile": (
        r"off|auto|[1-9]\d{0,8}:([1-9]|1\d|20)",
        'off, auto, or the first step and at most 20 steps, such as "20:3"',
    ),
    "output_dir": (output_directory.PATTERN, output_directory.WANTED),
}


@cache
def rules() -> dict[str, Rule]:
    return {name: _rule(name, hint) for name, hint in get_type_hints(PerfConfig).items()}


def _rule(name: str, hint: object) -> Rule:
    if get_origin(hint) is Literal:
        return Rule("choice", "one of " + ", ".join(get_args(hint)), choices=get_args(hint))
    if hint is bool:
        return Rule("flag", "true or false")
    if hint is int:
        return Rule("count", "a whole number from 1 on")
    pattern, wanted = _PATTERNS.get(name, (None, "text or None"))
    return Rule("text", wanted, optional=hint is not str, pattern=pattern)
