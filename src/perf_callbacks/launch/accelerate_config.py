"""The section `perf_callbacks` of accelerate's config file.

Editing replaces the section: the rest of the file, with its comments, stays as it was. The edited text is parsed again
before it is saved.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perf_callbacks.kernel.foreign_errors import let_pass, suppress
from perf_callbacks.kernel.settings import config_file
from perf_callbacks.kernel.settings.config import ConfigError
from perf_callbacks.kernel.settings.config_file import Node
from perf_callbacks.kernel.settings.in_force import FILE, SECTION, FileEntry, parse, variable

KEY = "perf_callbacks"


@dataclass(frozen=True, slots=True)
class AccelerateConfig:
    """A config file and its section."""

    path: Path
    text: str
    root: Node | None
    """None: the file is empty."""
    key: Node | None
    section: Node | None
    """The value of the key. None: the file has no section."""
    entries: tuple[FileEntry, ...]
    """The fields that the section sets."""


def default_path(environ: Mapping[str, str]) -> Path | None:
    """Return the path of accelerate's default config, without importing accelerate, which takes seconds.

    None: there is no home directory.
    """
    cache = Path(environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")
    try:
        return Path(environ.get("HF_HOME", cache)).expanduser() / "accelerate" / "default_config.yaml"
    except RuntimeError as error:
        let_pass(error)
        return None


def load(path: Path) -> AccelerateConfig:
    """Read a config file."""
    return _composed(path, config_file.read(path))


def _composed(path: Path, text: str) -> AccelerateConfig:
    root = config_file.compose(path, text)
    pairs = [pair for pair in root.value if pair[0].value == KEY] if root is not None else []
    if not pairs:
        return AccelerateConfig(path, text, root, None, None, ())
    key, section = pairs[-1]
    where = f"{path}, line {config_file.line(key)}"
    if len(pairs) > 1:
        raise ConfigError(f"{where}: {KEY} is set a second time.")
    if section.id != "mapping" and not section.tag.endswith(":null"):
        raise ConfigError(f"{where}: {KEY}: got a {section.id}, wanted fields with values.")
    entries = config_file.entries(section, f"{path}") if section.id == "mapping" else ()
    return AccelerateConfig(path, text, root, key, section, entries)


def exports(section: tuple[FileEntry, ...], environ: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables for all ranks: fields of the section that no stronger source sets."""
    settings = config_file.in_force(None, environ)  # reports a bad value once, and not on every rank
    parse(section)
    texts = {entry.name: entry.text for entry in section if entry.name not in settings.origins}
    variables = {variable(name): text for name, text in texts.items()}
    if texts:
        variables[SECTION] = ",".join(texts)
    if environ.get(FILE):  # a script may change its directory
        variables[FILE] = str(Path(environ[FILE]).resolve())
    return variables


def without_section(config: AccelerateConfig) -> dict[str, Any]:
    """Return the content of the file without the section, as accelerate reads it."""
    import yaml  # noqa: PLC0415 needed only with a file

    try:
        content = json.loads(config.text) if config.path.suffix == ".json" else yaml.safe_load(config.text) or {}
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{config.path} can't be read: {' '.join(str(error).split())}.") from None
    return {key: value for key, value in content.items() if key != KEY}


def edited(config: AccelerateConfig, values: Mapping[str, object], unset: Collection[str] = ()) -> str:
    """Return the text with fields set or removed. Raise `ConfigError` if the section would not be legal."""
    known = {entry.name: entry.text for entry in config.entries}
    for name in unset:
        if name not in known:
            raise ConfigError(f"{config.path} doesn't set {name}.")
    wanted = {name: text for name, text in known.items() if name not in unset}
    wanted |= {name: _text(value) for name, value in values.items()}
    if config.root is not None and config.root.flow_style:
        line = f'"{KEY}": {json.dumps(wanted)}'
        raise ConfigError(f"{config.path} is written in braces, as JSON, and is not edited. Write into it: {line}")
    if wanted == known:
        return config.text
    kept = {key.value: _source(config.text, value) for key, value in _fields(config) if key.value not in unset}
    text = _with_section(config, kept | {name: _scalar(value) for name, value in values.items()})
    _check(config, text, wanted)
    return text


def _fields(config: AccelerateConfig) -> list[tuple[Node, Node]]:
    """Return the nodes of the section's fields, each with its value."""
    return config.section.value if config.section is not None and config.section.id == "mapping" else []


def _with_section(config: AccelerateConfig, sources: Mapping[str, str]) -> str:
    """Return the text with a section of these fields, in place of the old section or at the end."""
    text, section, fields = config.text, config.section, _fields(config)
    block = "".join([f"{KEY}:\n", *[f"  {name}: {source}\n" for name, source in sources.items()]]) if sources else ""
    if "\r\n" in text:
        block = block.replace("\n", "\r\n")
    if section is None:
        start = end = len(text) if config.root is None else config.root.end_mark.index
        separate = "" if start == 0 or text[start - 1] == "\n" else "\n"
        return text[:start] + separate + block + text[end:]
    start = text.rfind("\n", 0, config.key.start_mark.index) + 1 if config.key is not None else 0
    end = _line_after(text, fields[-1][1] if fields and not section.flow_style else section)
    return text[:start] + block + text[end:]


def _check(config: AccelerateConfig, text: str, wanted: Mapping[str, str]) -> None:
    """Raise `ConfigError` unless the edited text has the wanted section and the old rest."""
    try:
        new = _composed(config.path, text)
    except ConfigError:
        new = None
    if new is None or _rest(new) != _rest(config) or {entry.name: entry.text for entry in new.entries} != wanted:
        raise ConfigError(f"{config.path}: the section {KEY} is written in a way that can't be edited: do it by hand.")
    parse(new.entries)


def save(path: Path, text: str) -> None:
    """Replace the text of a file atomically, keeping mode and owner. Raise `ConfigError` on failure."""
    path = path.resolve()
    try:
        if not os.access(path, os.W_OK):
            raise PermissionError(None, "it is write-protected")
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(descriptor)
            with suppress(OSError, AttributeError):  # Windows has no owners
                os.chown(name, path.stat().st_uid, path.stat().st_gid)
            shutil.copymode(path, name)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigError(f"{path} can't be written: {error.strerror or error}.") from None


def _rest(config: AccelerateConfig) -> list[object]:
    pairs = [] if config.root is None else config.root.value
    return [(_plain(key), _plain(value)) for key, value in pairs if key.value != KEY]


def _plain(node: Node) -> object:
    if node.id == "scalar":
        return node.tag, node.value
    parts = node.value if node.id == "sequence" else [part for pair in node.value for part in pair]
    return node.tag, [_plain(part) for part in parts]


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _scalar(value: object) -> str:
    """Write a value as YAML, also for use between braces: quoted if YAML would read another type."""
    import yaml  # noqa: PLC0415 needed only with a file

    written: str = yaml.safe_dump([value], default_flow_style=True, width=float("inf"), allow_unicode=True)
    return written.strip()[1:-1]


def _source(text: str, node: Node) -> str:
    return text[node.start_mark.index : node.end_mark.index].rstrip("\n")


def _line_after(text: str, node: Node) -> int:
    """Return the start of the line after a node."""
    end: int = node.end_mark.index
    if text[end - 1] == "\n":  # a block scalar ends there
        return end
    found = text.find("\n", end)
    return len(text) if found < 0 else found + 1
