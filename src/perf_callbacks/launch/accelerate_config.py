"""Reader and editor of the section `perf_callbacks` in accelerate's config file.

All other lines of the file, including comments, stay unchanged. The edited text is parsed again before it is saved.
"""

import json
import os
import re
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perf_callbacks.kernel.foreign_errors import let_pass
from perf_callbacks.kernel.records import atomic_file
from perf_callbacks.kernel.settings import config_file
from perf_callbacks.kernel.settings.config import ConfigError
from perf_callbacks.kernel.settings.config_file import Node
from perf_callbacks.kernel.settings.in_force import FILE, SECTION, FileEntry, parse, variable

KEY = "perf_callbacks"

_SECTION = re.compile(rf"""^(["']?){KEY}\1[ ]*:.*\n?(?:[ \t].*\n?|\r?\n(?=[ \t]))*""", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class AccelerateConfig:
    """Config file of accelerate, with its section `perf_callbacks`."""

    path: Path
    text: str
    root: Node | None
    key: Node | None
    entries: tuple[FileEntry, ...]


def default_path(environ: Mapping[str, str]) -> Path | None:
    """None if there is no home directory. Accelerate itself would take seconds to import."""
    cache = Path(environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")
    try:
        return Path(environ.get("HF_HOME", cache)).expanduser() / "accelerate" / "default_config.yaml"
    except RuntimeError as error:
        let_pass(error)
        return None


def load(path: Path) -> AccelerateConfig:
    return _composed(path, config_file.read(path))


def _composed(path: Path, text: str) -> AccelerateConfig:
    root = config_file.compose(path, text)
    pairs = [pair for pair in root.value if pair[0].value == KEY] if root is not None else []
    if not pairs:
        return AccelerateConfig(path, text, root, None, ())
    key, section = pairs[-1]
    where = f"{path}, line {config_file.line(key)}"
    if len(pairs) > 1:
        raise ConfigError(f"{where}: {KEY} is set a second time.")
    if section.id != "mapping" and not section.tag.endswith(":null"):
        raise ConfigError(f"{where}: {KEY}: got a {section.id}, wanted fields with values.")
    entries = config_file.entries(section, f"{path}") if section.id == "mapping" else ()
    return AccelerateConfig(path, text, root, key, entries)


def exports(section: tuple[FileEntry, ...], environ: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables for all ranks.

    Settings of the environment or of the file of `PERF_CALLBACKS_CONFIG` are left out.
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
    import yaml  # noqa: PLC0415 needed only with a file

    try:
        content = json.loads(config.text) if config.path.suffix == ".json" else yaml.safe_load(config.text) or {}
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{config.path} can't be read: {' '.join(str(error).split())}.") from None
    return {key: value for key, value in content.items() if key != KEY}


def edited(config: AccelerateConfig, values: Mapping[str, object], unset: Collection[str] = ()) -> str:
    settings = parse(config.entries)
    for name in unset:
        if name not in settings:
            raise ConfigError(f"{config.path} doesn't set {name}.")
    wanted = {name: value for name, value in settings.items() if name not in unset} | {**values}
    if config.root is not None and config.root.flow_style:
        line = f'"{KEY}": {json.dumps(wanted)}'
        raise ConfigError(f"{config.path} is written in braces, as JSON, and is not edited. Write into it: {line}")
    if wanted == settings:
        return config.text
    text = _with_section(config, wanted)
    try:
        new = _composed(config.path, text)
    except ConfigError:
        new = None
    if new is None or parse(new.entries) != wanted or without_section(new) != without_section(config):
        raise ConfigError(f"{config.path}: the section {KEY} is written in a way that can't be edited: do it by hand.")
    return text


def _with_section(config: AccelerateConfig, values: Mapping[str, object]) -> str:
    import yaml  # noqa: PLC0415 needed only with a file

    block = ""
    if values:
        block = yaml.safe_dump({KEY: {**values}}, sort_keys=False, allow_unicode=True, width=float("inf"))
    if "\r\n" in config.text:
        block = block.replace("\n", "\r\n")
    section = None if config.key is None else _SECTION.search(config.text)
    if section is not None:
        return config.text[: section.start()] + block + config.text[section.end() :]
    end = len(config.text) if config.root is None else config.root.end_mark.index  # YAML's end line "..." may follow
    before = config.text[:end]
    return before + ("\n" if before and not before.endswith("\n") else "") + block + config.text[end:]


def save(path: Path, text: str) -> None:
    """Write atomically, and keep mode and owner. Raise `ConfigError` on failure."""
    path = path.resolve()
    try:
        if not os.access(path, os.W_OK):
            raise PermissionError(None, "it is write-protected")
        before = path.stat()
        atomic_file.replace(path, text.encode(), stat.S_IMODE(before.st_mode), (before.st_uid, before.st_gid))
    except OSError as error:
        raise ConfigError(f"{path} can't be written: {error.strerror or error}.") from None
