"""Does the suite notice a changed line? `make mutants` changes 120 lines of all rooms, one at a time.

A mutant is a comparison, an operator, a number or a condition that is turned. It is caught if a test of the quick suite
fails that goes through its line. Which tests these are is measured first, by one run of the suite with coverage.
Before and after a change that removes tests or code: not fewer may be caught. `--mutants FILE` keeps the list, and
finds the same mutants again by their statements when lines have moved.
"""

import argparse
import ast
import copy
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from coverage import CoverageData
from house import PACKAGE, ROOMS, ROOT

PAIRS: list[tuple[type[ast.AST], type[ast.AST]]] = [
    (ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn),
    (ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.And, ast.Or),
]  # fmt: skip
OPPOSITES = dict(PAIRS) | {second: first for first, second in PAIRS}
MOST_TESTS = 200
"""Of one mutant: those that go through the fewest lines first, which are about it."""
TESTS_OF_A_FILE = 12
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow"]


def mutants(source: str) -> Iterator[tuple[tuple[str, int, int], int, str]]:
    """Yield of each mutant its statement with a number, its line, and the source with it."""
    tree = ast.parse(source)
    seen: Counter[str] = Counter()
    for statement in ast.walk(tree):
        if not isinstance(statement, ast.stmt):
            continue
        text = ast.unparse(statement).splitlines()[0]
        seen[text] += 1
        for number, node in enumerate(_own(statement)):
            before = copy.copy(node.__dict__)
            if _turn(node):
                yield (text, seen[text], number), getattr(node, "lineno", statement.lineno), ast.unparse(tree)
                node.__dict__.clear()
                node.__dict__.update(before)


def _own(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield the nodes of a statement, without those of statements inside of it."""
    nodes: list[ast.AST] = [statement]
    while nodes:
        node = nodes.pop()
        yield node
        nodes += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)]


def _turn(node: ast.AST) -> bool:
    match node:
        case ast.Compare(ops=[operator, *others]) if type(operator) in OPPOSITES:
            node.ops = [OPPOSITES[type(operator)](), *others]  # type: ignore[list-item]
        case ast.BinOp(op=operator) | ast.BoolOp(op=operator) if type(operator) in OPPOSITES:
            node.op = OPPOSITES[type(operator)]()  # type: ignore[assignment]
        case ast.Constant(value=bool() as value):
            node.value = not value
        case ast.Constant(value=int() | float() as value):
            node.value = value * 2 + 1
        case ast.IfExp(test=test) | ast.If(test=test):
            node.test = ast.UnaryOp(ast.Not(), test)
        case _:
            return False
    return True


def sample(total: int) -> list[list[object]]:
    """Return mutants of all rooms, each as its module and its statement."""
    chosen = []
    generator = random.Random(1)
    lines = {
        room: [file for folder in folders for file in sorted(_files(folder)) if "demo" not in file.parts]
        for room, folders in ROOMS.items()
    }
    size = sum(len(file.read_bytes().splitlines()) for files in lines.values() for file in files)
    for files in lines.values():
        every = [[str(file.relative_to(PACKAGE)), *key] for file in files for key, _, _ in mutants(file.read_text())]
        share = sum(len(file.read_bytes().splitlines()) for file in files) / size
        chosen += generator.sample(every, max(3, round(total * share)))
    while len(chosen) > total:
        del chosen[generator.randrange(len(chosen))]
    return chosen


def _files(folder: str) -> Iterator[Path]:
    return PACKAGE.glob(folder) if "*" in folder else (PACKAGE / folder).rglob("*.py")


class Tests:
    """Which tests go through a line, by one run of the quick suite."""

    def __init__(self, data: Path) -> None:
        self._data = CoverageData(str(data))
        self._data.read()
        self._lines = {
            name.rpartition("src/perf_callbacks/")[2]: self._data.contexts_by_lineno(name)
            for name in self._data.measured_files()
        }
        self._breadth: Counter[str] = Counter()
        for contexts in self._lines.values():
            for tests in contexts.values():
                self._breadth.update(tests)

    def of(self, module: str, line: int, statement: str) -> list[str]:
        """Return the tests that go through a line; of a constant, those that go through lines with its name."""
        tests = {test for test in self._lines.get(module, {}).get(line, ()) if test}
        for name in re.findall(r"\w+", statement)[:2] if not tests else ():
            for other, contexts in self._lines.items():
                source = (PACKAGE / other).read_text().splitlines() if (PACKAGE / other).exists() else []
                named = {number for number, text in enumerate(source, 1) if re.search(rf"\b{name}\b", text)}
                tests |= {test for number in named & contexts.keys() for test in contexts[number] if test}
        if not tests:
            tests = {test for contexts in self._lines.get(module, {}).values() for test in contexts if test}
        names = sorted({test.partition("|")[0] for test in tests}, key=lambda test: self._breadth[f"{test}|run"])
        per_file: dict[str, int] = defaultdict(int)
        picked = []
        for name in names:
            file = name.partition("::")[0]
            per_file[file] += 1
            if per_file[file] <= TESTS_OF_A_FILE:
                picked.append(name)
        return picked[:MOST_TESTS]


def measure(data: Path) -> None:
    """Run the quick suite, and write which tests go through which line."""
    environment = {**os.environ, "COVERAGE_FILE": str(data)}
    options = ["-n", "2", "--dist", "loadfile", "--cov", "--cov-context=test", "--cov-report=", "tests"]
    subprocess.run([*PYTEST, *options], cwd=ROOT, env=environment, check=False)


def _fails(source: Path, tests: list[str]) -> bool:
    arguments = source / "tests.txt"
    arguments.write_text("\n".join(tests))
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        code = subprocess.run(
            [*PYTEST, "-x", "-p", "no:randomly", f"@{arguments}"],
            cwd=ROOT, env=environment, capture_output=True, timeout=600, check=False,
        ).returncode  # fmt: skip
    except subprocess.TimeoutExpired:
        return True
    files = sorted({test.partition("::")[0] for test in tests})
    return code != 0 if code < 4 or files == tests else _fails(source, files)  # a name that no line can hold


def tried(mutant: list[object], tests: Tests, directory: Path) -> str:
    """Return what came of a mutant: "caught", "survived" with its tests, or "gone"."""
    module, text, occurrence, number = mutant
    file = directory / "perf_callbacks" / str(module)
    if not file.exists():
        return "gone"
    source = file.read_text()
    matches = [(line, turned) for key, line, turned in mutants(source) if key == (text, occurrence, number)]
    if not matches:
        return "gone"
    line, turned = matches[0]
    chosen = tests.of(str(module), line, str(text))
    if not chosen:
        return f"survived: line {line} is in no test"
    file.write_text(turned)
    try:
        return "caught" if _fails(directory, chosen) else f"survived {len(chosen)} tests: line {line}"
    finally:
        file.write_text(source)


def main() -> None:
    """Print what came of each mutant, and how many were caught."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=120)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--mutants", type=Path, help="list of mutants: read if it is there, else written")
    parser.add_argument("--data", type=Path, help="what an earlier run measured of the suite")
    arguments = parser.parse_args()
    chosen = sample(arguments.count)
    if arguments.mutants and arguments.mutants.exists():
        chosen = json.loads(arguments.mutants.read_text())
    elif arguments.mutants:
        arguments.mutants.write_text(json.dumps(chosen, indent=0))
    with tempfile.TemporaryDirectory() as scratch:
        data = arguments.data or Path(scratch, "coverage")
        if not data.exists():
            measure(data)
        tests = Tests(data)
        copies = [Path(scratch, str(number)) for number in range(arguments.workers)]
        for directory in copies:
            shutil.copytree(ROOT / "src", directory)
        free = list(copies)

        def one(mutant: list[object]) -> str:
            directory = free.pop()
            try:
                result = tried(mutant, tests, directory)
            finally:
                free.append(directory)
            print(result, *mutant, sep=" | ", flush=True)
            return result

        with ThreadPoolExecutor(arguments.workers) as pool:
            results = [*pool.map(one, chosen)]
    there = [*filter("gone".__ne__, results)]
    print(f"{there.count('caught')} of {len(there)} mutants caught")


if __name__ == "__main__":
    main()
