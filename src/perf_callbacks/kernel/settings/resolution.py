"""Decides which source of a setting wins: a file overrides the code, and the environment overrides both."""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from perf_callbacks.kernel.settings import on_event
from perf_callbacks.kernel.settings.config import FLAGS, ConfigError, PerfConfig, printable, refusal, rules, shown
from perf_callbacks.kernel.settings.gone import GONE

SWITCH = "PERF_CALLBACKS"
PREFIX = "PERF_CALLBACKS_"

FILE = "PERF_CALLBACKS_CONFIG"

SECTION = "PERF_CALLBACKS_SECTION"
"""Variable with the names of all fields that come from accelerate's config."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A setting in a file."""

    name: str
    text: str
    """As written; empty for YAML's null."""
    where: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Settings in force, and the origin of each."""

    config: PerfConfig
    from_env: tuple[str, ...]
    """Fields from the environment, without those of accelerate's config."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """Variable, place in a file or accelerate's config, for each field that is set from outside."""
    remarks: tuple[str, ...]
    """Sentences for the log about variables that are no settings, or whose value is gone."""
    on_event: tuple[str, ...] = ()
    """Command that runs at events. Only the environment can set it, so `config` lacks it."""

    @property
    def shown(self) -> dict[str, Any]:
        """Values of all settings. The command's arguments may hold secrets, and are left out."""
        return asdict(self.config) | {on_event.FIELD: on_event.shown(self.on_event) if self.on_event else None}

    @property
    def from_file(self) -> dict[str, str]:
        """Fields that a file or accelerate's config has set, each with its origin."""
        return {name: origin for name, origin in self.origins.items() if name not in self.from_env}


def resolve(config: PerfConfig | None, environ: Mapping[str, str], entries: Iterable[FileEntry] = ()) -> Settings:
    """Return the settings in force.

    >>> resolve(PerfConfig(window=10), {"PERF_CALLBACKS_WINDOW": "20"}).config.window
    20
    >>> resolve(None, {}, [FileEntry("window", "30", "perf.yaml, line 1")]).from_file
    {'window': 'perf.yaml, line 1'}
    >>> resolve(None, {"PERF_CALLBACKS": "0"}).config.enabled
    False
    """
    config = config or PerfConfig()
    if switched_off(environ):
        off = replace(config, enabled=False)
        return Settings(config=off, from_env=("enabled",), origins={"enabled": SWITCH}, remarks=())
    entries = tuple(entries)
    values = parse(entries)
    given = {name: environ[variable(name)] for name in rules() if variable(name) in environ}
    gone = [name for name, text in given.items() if f"{name}={text.strip()}" in GONE or _is_old_baseline(name, text)]
    names = [name for name in given if name not in gone]
    remarks = [f"{variable(name)}: {refusal(name, given[name].strip())}" for name in gone]
    values |= {name: _value(name, given[name], variable(name)) for name in names}
    handed = environ.get(SECTION, "").split(",")
    from_env = tuple(name for name in names if name not in handed)
    origins = {name: variable(name) for name in from_env}
    origins |= {entry.name: entry.where for entry in entries if entry.name not in names}
    origins |= {name: "accelerate's config" for name in names if name in handed}
    command = on_event.command(environ)
    if command:
        from_env += (on_event.FIELD,)
        origins[on_event.FIELD] = on_event.VARIABLE
    config = replace(config, **values)
    remarks += _strangers(environ)
    return Settings(config=config, from_env=from_env, origins=origins, remarks=tuple(remarks), on_event=command)


def _is_old_baseline(name: str, text: str) -> bool:
    """A baseline was a directory or a number once. A variable that still says so must not end the training."""
    return name == "baseline" and not rules()[name].allows(rules()[name].parse(text))


def switched_off(environ: Mapping[str, str]) -> bool:
    switch = environ.get(SWITCH, "").strip().lower()
    if switch and switch not in FLAGS:
        raise ConfigError(f"{SWITCH}: got {shown(environ[SWITCH])}, wanted 0 or 1.")
    return bool(switch) and not FLAGS[switch]


def variable(name: str) -> str:
    return PREFIX + name.upper()


def parse(entries: Iterable[FileEntry]) -> dict[str, Any]:
    """Return the values of a file's entries.

    >>> parse([FileEntry("windwo", "20", "perf.yaml, line 3")])
    Traceback (most recent call last):
        ...
    perf_callbacks.kernel.settings.config.ConfigError: perf.yaml, line 3: there is no field 'windwo'; did \
you mean window?
    """
    values: dict[str, Any] = {}
    for entry in entries:
        if entry.name == on_event.FIELD:
            raise ConfigError(f"{entry.where}: {on_event.ENVIRONMENT_ALONE}.")
        if entry.name not in rules():
            question = _question(entry.name, [*rules()])
            raise ConfigError(f"{entry.where}: there is no field {entry.name!r}{question}")
        values[entry.name] = _value(entry.name, entry.text, f"{entry.where}: {entry.name}")
    return values


def _value(name: str, text: str, where: str) -> object:
    rule = rules()[name]
    value = rule.parse(text)
    if not rule.allows(value):
        raise ConfigError(f"{where}: {refusal(name, text)}")
    return value


_LIKE = re.compile(r"PERF_?CALLBACKS?(_|$)")
"""Likely misspellings of `PERF_CALLBACKS`, alone or at the beginning of a longer name."""


def _strangers(environ: Mapping[str, str]) -> tuple[str, ...]:
    variables = [*map(variable, rules()), on_event.VARIABLE, FILE, SECTION, SWITCH]
    similar = [name for name in environ if name.startswith(PREFIX) or _LIKE.match(name)]
    names = sorted(name for name in similar if name not in variables)
    return tuple(f"{printable(name)} is no setting{_question(name, variables)}" for name in names)


def _question(name: str, variables: list[str]) -> str:
    nearest = difflib.get_close_matches(name, variables, n=1)
    return f"; did you mean {nearest[0]}?" if nearest else "."
