"""One file knows kinds of devices: no other file of the package names a kind, or torch's module of a kind."""

import ast
from pathlib import Path

import perf_callbacks

SOURCE = Path(perf_callbacks.__file__).parent
KINDS = {"cuda", "xpu", "mps", "npu", "hpu", "xla", "mtia", "hip"}
OWNER = "kernel/process/device.py"


def names(source):
    """Kinds in a file, with their lines: text that equals a kind or begins with a kind's number, and `torch.cuda`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value.partition(":")[0] in KINDS:
                yield node.lineno, node.value
        elif isinstance(node, ast.Attribute) and node.attr in KINDS:
            yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            imported = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            for name in imported:
                if KINDS & {*name.split(".")}:
                    yield node.lineno, name


def test_only_the_module_of_devices_names_their_kinds():
    broken = {}
    for path in sorted(SOURCE.rglob("*.py")):
        file, source = path.relative_to(SOURCE).as_posix(), path.read_text(encoding="utf-8")
        if file != OWNER and any(kind in source for kind in KINDS) and (seen := [*names(source)]):
            broken[file] = seen
    assert broken == {}
