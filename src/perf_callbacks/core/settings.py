"""Settings in force: those of the code, overridden by the environment."""

import difflib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from perf_callbacks.core.config import FLAGS, ConfigError, PerfConfig, rules

SWITCH = "PERF_CALLBACKS"
PREFIX = "PERF_CALLBACKS_"


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Settings in force, and where they came from."""

    config: PerfConfig
    """Settings in force."""
    from_env: tuple[str, ...]
    """The fields that the environment set."""
    remarks: tuple[str, ...]
    """Sentences for the log: variables without a meaning, fields of features that are not built yet."""


def resolve(config: PerfConfig | None, environ: Mapping[str, str]) -> Settings:
    """Override a configuration by the environment.

    >>> resolve(PerfConfig(window=10), {"PERF_CALLBACKS_WINDOW": "20"}).config.window
    20
    >>> resolve(None, {"PERF_CALLBACKS": "0"}).config.enabled
    False
    """
    config = config or PerfConfig()
    switch = environ.get(SWITCH, "").strip().lower()
    if switch and switch not in FLAGS:
        raise ConfigError(f"{SWITCH}: got {environ[SWITCH]!r}, wanted 0 or 1.")
    if switch and not FLAGS[switch]:
        return Settings(config=replace(config, enabled=False), from_env=("enabled",), remarks=())
    found = {name: PREFIX + name.upper() for name in rules() if PREFIX + name.upper() in environ}
    values: dict[str, Any] = {name: _value(name, variable, environ) for name, variable in found.items()}
    config = replace(config, **values)
    return Settings(config=config, from_env=tuple(found), remarks=_strangers(environ) + unbuilt(config))


def _value(name: str, variable: str, environ: Mapping[str, str]) -> object:
    rule = rules()[name]
    value = rule.parse(environ[variable])
    if not rule.allows(value):
        raise ConfigError(f"{variable}: got {environ[variable]!r}, wanted {rule.wanted}.")
    return value


def _strangers(environ: Mapping[str, str]) -> tuple[str, ...]:
    names = sorted(name.removeprefix(PREFIX) for name in environ if name.startswith(PREFIX))
    known = [name.upper() for name in rules()]
    return tuple(_stranger(name, difflib.get_close_matches(name, known, n=1)) for name in names if name not in known)


def _stranger(name: str, nearest: list[str]) -> str:
    question = f"; did you mean {PREFIX}{nearest[0]}?" if nearest else "."
    return f"{PREFIX}{name} means nothing here{question}"


NOT_BUILT = frozenset(
    {
        "report",
        "baseline",
        "profile",
        "nvtx",
        "memory_snapshot",
        "anomaly_capture",
    }
)
"""Fields that are checked and have no effect yet."""


def unbuilt(config: PerfConfig) -> tuple[str, ...]:
    """Return a sentence for each field that is set although its feature does not exist yet.

    >>> unbuilt(PerfConfig(nvtx=True))
    ('nvtx=True is not built yet and has no effect.',)
    """
    default = asdict(PerfConfig())
    chosen = {name: value for name, value in asdict(config).items() if value != default[name]}
    return tuple(f"{name}={chosen[name]!r} is not built yet and has no effect." for name in chosen if name in NOT_BUILT)
