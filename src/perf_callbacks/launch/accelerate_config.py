"""Reader of the section `perf_callbacks` in accelerate's config file."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perf_callbacks.kernel.foreign_errors import let_pass
from perf_callbacks.kernel.settings import config_file
from perf_callbacks.kernel.settings.config import ConfigError
from perf_callbacks.kernel.settings.in_force import FILE, SECTION, FileEntry, parse, variable

KEY = "perf_callbacks"


@dataclass(frozen=True, slots=True)
class AccelerateConfig:
    """Config file of accelerate, with its section `perf_callbacks`."""

    path: Path
    text: str
    has_section: bool
    entries: tuple[FileEntry, ...]
    """Settings in the section `perf_callbacks`."""


def default_path(environ: Mapping[str, str]) -> Path | None:
    """Return the path of accelerate's default config file, or None if there is no home directory.

    The function doesn't import accelerate, because the import would take seconds.
    """
    cache = Path(environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")
    try:
        return Path(environ.get("HF_HOME", cache)).expanduser() / "accelerate" / "default_config.yaml"
    except RuntimeError as error:
        let_pass(error)
        return None


def load(path: Path) -> AccelerateConfig:
    """Read and parse a config file of accelerate."""
    text = config_file.read(path)
    root = config_file.compose(path, text)
    pairs = [pair for pair in root.value if pair[0].value == KEY] if root is not None else []
    if not pairs:
        return AccelerateConfig(path, text, has_section=False, entries=())
    key, section = pairs[-1]
    where = f"{path}, line {config_file.line(key)}"
    if len(pairs) > 1:
        raise ConfigError(f"{where}: {KEY} is set a second time.")
    if section.id != "mapping" and not section.tag.endswith(":null"):
        raise ConfigError(f"{where}: {KEY}: got a {section.id}, wanted fields with values.")
    entries = config_file.entries(section, f"{path}") if section.id == "mapping" else ()
    return AccelerateConfig(path, text, has_section=True, entries=entries)


def exports(section: tuple[FileEntry, ...], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a section as environment variables for all ranks.

    The result leaves out settings that are already set by the environment or by the file of `PERF_CALLBACKS_CONFIG`.
    """
    settings = config_file.in_force(None, environ)  # reports a bad value once, and not on every rank
    parse(section)
    texts = {entry.name: entry.text for entry in section if entry.name not in settings.origins}
    variables = {variable(name): text for name, text in texts.items()}
    if texts:
        variables[SECTION] = ",".join(texts)
    if environ.get(FILE):  # a script may change the working directory
        variables[FILE] = str(Path(environ[FILE]).resolve())
    return variables


def without_section(config: AccelerateConfig) -> dict[str, Any]:
    """Return the parsed content of the file without the section `perf_callbacks`."""
    import yaml  # noqa: PLC0415 needed only with a file

    try:
        content = json.loads(config.text) if config.path.suffix == ".json" else yaml.safe_load(config.text) or {}
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{config.path} can't be read: {' '.join(str(error).split())}.") from None
    return {key: value for key, value in content.items() if key != KEY}
