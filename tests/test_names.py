"""Names of tests say what is tested, and tests go through public doors."""

import ast
from collections.abc import Iterator
from pathlib import Path

from house import PACKAGE, ROOT

LONGEST_NAME = len("test_") + 70
PRONOUNS = {"what", "who", "those", "one", "nobody"}
ABOUT_PRIVATE_STATE = {"tests/kernel/test_owner.py", "tests/kernel/test_watchdog.py"}
"""Paths of files whose subject is private state. At most three."""


def test_names_of_tests_are_short_and_have_nouns() -> None:
    names = [node.name for _, tree in _test_files() for node in ast.walk(tree) if _is_test(node)]

    assert [name for name in names if len(name) > LONGEST_NAME or {*name.split("_")} & PRONOUNS] == []


def test_private_attributes_are_touched_in_three_files() -> None:
    ours = {name for file in PACKAGE.rglob("*.py") for name in _stored(ast.parse(file.read_text())) if _private(name)}
    touched = {str(file.relative_to(ROOT)): _read(tree) & ours - _stored(tree) for file, tree in _test_files()}

    assert len(ABOUT_PRIVATE_STATE) <= 3
    assert {file: names for file, names in touched.items() if names and file not in ABOUT_PRIVATE_STATE} == {}


def _test_files() -> Iterator[tuple[Path, ast.Module]]:
    return ((file, ast.parse(file.read_text())) for file in (ROOT / "tests").rglob("test_*.py"))


def _is_test(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")


def _private(name: str) -> bool:
    """Say if a name is private: not a protocol of others, such as `_repr_html_`, nor a method of named tuples."""
    return name[0] == "_" and name[1:2] not in {"", "_"} and name[-1] != "_" and name not in {"_make", "_replace"}


def _stored(tree: ast.AST) -> set[str]:
    """Return the names that a module gives: attributes, variables, functions and classes."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
    return names


def _read(tree: ast.AST) -> set[str]:
    """Return the private attributes that a module reads, and what private it imports from the package."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) if _private(name):
                names.add(name)
            case ast.ImportFrom(module=str(module)) if module.startswith("perf_callbacks"):
                names |= {alias.name for alias in node.names if _private(alias.name)}
    return names
