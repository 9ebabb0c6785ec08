"""Reads settings from YAML or JSON files.

PyYAML only parses: tags run no code, and aliases aren't expanded. YAML itself would read `off` as False.
"""

import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perf_callbacks.kernel.settings.config import ConfigError, PerfConfig
from perf_callbacks.kernel.settings.resolution import FILE, FileEntry, Settings, resolve, switched_off

LIMIT = 100_000
"""Bytes. PyYAML takes about a second to compose a file of this size."""

Node = Any


def in_force(config: PerfConfig | None, environ: Mapping[str, str]) -> Settings:
    name = environ.get(FILE)
    if not name or switched_off(environ):
        return resolve(config, environ)
    path = Path(name)
    try:
        root = compose(path, read(path))
        fields = () if root is None else entries(root, name)
    except ConfigError as error:
        raise ConfigError(f"{FILE}: {error}") from None
    return resolve(config, environ, fields)


def read(path: Path) -> str:
    """Read a small text file without converting line ends. Raise `ConfigError` for any other file."""
    try:
        regular = stat.S_ISREG(path.stat().st_mode)
        content = b""
        if regular:  # reading a pipe could wait for ever
            with path.open("rb") as file:
                content = file.read(LIMIT + 1)
        text = content.decode() if len(content) <= LIMIT else ""
    except FileNotFoundError:
        place = "" if path.is_absolute() else f" in {Path.cwd()}"
        raise ConfigError(f"{path}: there is no such file{place}.") from None
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror or error}.") from None
    except ValueError as error:  # bytes that aren't UTF-8, a NUL in the path
        raise ConfigError(f"{str(path)!r} can't be read: {error}.") from None
    if not regular:
        raise ConfigError(f"{path} is not a file.")
    if len(content) > LIMIT:
        raise ConfigError(f"{path} is larger than {LIMIT:,} bytes.")
    return text


def compose(path: Path, text: str) -> Node | None:
    import yaml  # noqa: PLC0415 only for those who use a file

    try:
        # JSON allows tabs as white space, YAML doesn't.
        root = yaml.compose(text.replace("\t", " ") if path.suffix == ".json" else text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ConfigError(_syntax(path, error)) from None
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply.") from None
    if root is None or root.tag.endswith(":null"):
        return None
    if root.id != "mapping":
        raise ConfigError(f"{path}, line {line(root)}: got a {root.id}, wanted fields with values, such as window: 20.")
    return root


def entries(mapping: Node, name: str) -> tuple[FileEntry, ...]:
    fields: dict[str, FileEntry] = {}
    for key, value in mapping.value:
        where = f"{name}, line {line(key)}"
        for node in (key, value):
            if not node.tag.startswith("tag:yaml.org,2002:") or "/" in node.tag:
                raise ConfigError(f"{where}: the tag {node.tag} is not allowed.")
        if key.id != "scalar" or value.id != "scalar":
            raise ConfigError(f"{where}: got a {(key if key.id != 'scalar' else value).id}, wanted a single value.")
        if key.value in fields:
            raise ConfigError(f"{where}: {key.value} is set a second time.")
        if "\0" in value.value:
            raise ConfigError(f"{where}: {key.value}: a NUL character is not allowed.")
        text = "" if value.tag.endswith(":null") else value.value
        fields[key.value] = FileEntry(key.value, text, where)
    return tuple(fields.values())


def line(node: Node) -> int:
    return int(node.start_mark.line) + 1


def _syntax(path: Path, error: Any) -> str:
    mark = getattr(error, "problem_mark", None)
    place = f"{path}, line {mark.line + 1}" if mark is not None else f"{path}"
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"{place} is not valid YAML: {problem}."
