"""Does the suite notice a changed line? `make mutants` changes six pure modules, one line at a time.

A mutant is a comparison, an operator, a number or a condition that is turned. It is caught if a test of its module
fails. Before and after a change that removes tests or code: not fewer may be caught.
"""

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODULES = {
    "memory/use.py": ("tests/memory/test_use.py", "tests/memory/test_estimate.py"),
    "report/batch_means.py": ("tests/report/test_batch_means.py", "tests/commands/test_compare.py"),
    "flops/peaks/peak_rates.py": ("tests/flops/test_peaks.py", "tests/flops/test_rating.py"),
    "trials/remedies.py": ("tests/trials",),
    "stalls/diagnosis.py": ("tests/stalls/test_diagnosis.py", "tests/stalls/test_notes.py"),
    "goodput/time_kinds.py": ("tests/goodput",),
}
"""Modules without torch, each with the tests that look at it."""

OPPOSITES: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


def mutants(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the source of each mutant."""
    tree = ast.parse(source)
    for index, node in enumerate(ast.walk(tree)):
        turned = copy.deepcopy(tree)
        if _turn(next(other for number, other in enumerate(ast.walk(turned)) if number == index)):
            yield getattr(node, "lineno", 0), ast.unparse(turned)


def _turn(node: ast.AST) -> bool:
    match node:
        case ast.Compare(ops=[operator, *_]) if type(operator) in OPPOSITES:
            node.ops[0] = OPPOSITES[type(operator)]()  # type: ignore[call-overload]
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


def _fails(source: Path, tests: tuple[str, ...]) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    return (
        subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=300, check=False).returncode
        != 0
    )


def main() -> None:
    """Print how many mutants of each module are caught, and where the others are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=10, help="mutants of each module")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    caught, total = 0, 0
    with tempfile.TemporaryDirectory() as directory:
        copied = Path(directory, "src")
        shutil.copytree(ROOT / "src", copied)
        for module, tests in MODULES.items():
            file = copied / "perf_callbacks" / module
            source = file.read_text()
            if _fails(copied, tests):
                sys.exit(f"the tests of {module} fail without a mutant")
            every = list(mutants(source))
            chosen = random.Random(arguments.seed).sample(every, min(arguments.each, len(every)))
            survivors = []
            for line, mutant in chosen:
                file.write_text(mutant)
                if not _fails(copied, tests):
                    survivors.append(line)
            file.write_text(source)
            caught += len(chosen) - len(survivors)
            total += len(chosen)
            missed = f", not in lines {sorted(survivors)}" if survivors else ""
            print(f"{module}: {len(chosen) - len(survivors)} of {len(chosen)} caught{missed}", flush=True)
    print(f"{caught} of {total} mutants caught")


if __name__ == "__main__":
    main()
