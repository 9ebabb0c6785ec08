"""Size of the project, counted from its files: `python tests/house.py` prints the figures of `tests/test_budget.py`."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "perf_callbacks"

ROOMS = {
    "public modules": ("*.py",),
    "engine": ("kernel/engine",),
    "batches": ("kernel/batches",),
    "fit": ("kernel/fit",),
    "process": ("kernel/process", "kernel/*.py"),
    "settings": ("kernel/settings",),
    "journal": ("kernel/records",),
    "ranks": ("ranks",),
    "flops": ("flops",),
    "checklist items": ("garbage", "loaders", "affinity"),
    "stragglers": ("stragglers",),
    "stalls": ("stalls",),
    "memory": ("memory",),
    "profiles": ("profiles",),
    "runs compared": ("goodput", "baseline", "scaling"),
    "notifications": ("notifications",),
    "advice": ("advice",),
    "report": ("report",),
    "integrations": ("integrations",),
    "launch": ("launch", "trials"),
    "commands": ("commands",),
}
"""Folders of each room, below the package."""


def figures() -> dict[str, float]:
    """Return lines of each room, of tests and of benchmarks, kilobytes of documents, tunables, and share of docstrings.

    Lines are what `wc -l` counts in `*.py`.
    """
    sources = list(PACKAGE.rglob("*.py"))
    lines = sum(_lines(sources))
    return {
        **{f"src/{room}": sum(_lines(_files(folders))) for room, folders in ROOMS.items()},
        "src": lines,
        "tests": sum(_lines((ROOT / "tests").rglob("*.py"))),
        "benchmarks": sum(_lines((ROOT / "benchmarks").rglob("*.py"))),
        "docs, kB": round(sum(page.stat().st_size for page in (ROOT / "docs").rglob("*.md")) / 1000),
        "tunables": sum(tunables(ast.parse(file.read_text())) for file in sources),
        "docstrings, %": round(100 * sum(docstring_lines(ast.parse(file.read_text())) for file in sources) / lines, 1),
    }


def tunables(module: ast.Module) -> int:
    """Return how many numbers decide something: module-level names of numbers, and numbers in signatures."""
    constants = [node.value for node in module.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    defaults = [
        default
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for default in (*node.args.defaults, *node.args.kw_defaults)
    ]
    return sum(map(_is_number, defaults)) + sum(_is_number(value) or _is_numbers(value) for value in constants)


def docstring_lines(module: ast.Module) -> int:
    """Return the lines of strings that are statements: docstrings, and the texts below fields and constants."""
    return sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(module)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    )


def _is_number(value: ast.expr | None) -> bool:
    match value:
        case ast.Constant(value=number):
            return isinstance(number, int | float) and not isinstance(number, bool)
        case ast.UnaryOp(operand=operand):
            return _is_number(operand)
        case ast.BinOp(left=left, right=right):
            return _is_number(left) and _is_number(right)
    return False


def _is_numbers(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Tuple | ast.List) and bool(value.elts) and all(map(_is_number, value.elts))


def _files(folders: tuple[str, ...]) -> Iterator[Path]:
    for folder in folders:
        yield from PACKAGE.glob(folder) if "*" in folder else (PACKAGE / folder).rglob("*.py")


def _lines(files: Iterator[Path] | list[Path]) -> Iterator[int]:
    return (file.read_bytes().count(b"\n") for file in files)


if __name__ == "__main__":
    for name, figure in figures().items():
        print(f"{figure:10,} {name}")
