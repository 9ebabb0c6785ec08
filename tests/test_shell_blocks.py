"""Commands in README and the pages: each names a command, file, option, variable or target that exists.

They are not run here: many of them train for minutes, or need a cluster.
"""

import re
import shlex
from pathlib import Path

import pytest
import yaml
from rows import each_row

from perf_callbacks.commands import parser, run
from perf_callbacks.kernel.settings.config import PerfConfig

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TARGETS = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
VARIABLES = {f"PERF_CALLBACKS_{name.upper()}" for name in PerfConfig.__dataclass_fields__}
VARIABLES |= {"PERF_CALLBACKS", "PERF_CALLBACKS_CONFIG", "PERF_CALLBACKS_ON_EVENT"}
ENDS = re.compile(r"&&|\|\||[|;>]+")


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def commands():
    for page in PAGES:
        for block in blocks(page, "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                while words:
                    cut = next((place for place, word in enumerate(words) if ENDS.fullmatch(word)), len(words))
                    if words[:cut]:
                        yield pytest.param(words[:cut], id=f"{page.stem}: {line[:50]}")
                    words = words[cut + 1 :]


@each_row("words", [*commands()])
def test_a_command_names_existing_words(words):
    words = words[words[0] == "export" :]
    while re.fullmatch(r"[A-Z_]+=.*", words[0] if words else ""):
        name = words.pop(0).partition("=")[0]
        assert name in VARIABLES or not name.startswith("PERF_CALLBACKS")
    if "perf-callbacks" in words:
        parser().parse_args(run.unparsed(words[words.index("perf-callbacks") + 1 :]))
    elif words[:1] == ["make"]:
        assert words[1] in TARGETS
    elif words[:1] == ["python"] and words[1].startswith(("benchmarks/", "examples/")):
        program = ROOT / words[1]
        text = "".join([path.read_text(encoding="utf-8") for path in [program, *program.parent.glob("*.py")]])
        assert program.exists()
        assert [word for word in words[2:] if word.startswith("--") and f'"{word.partition("=")[0]}"' not in text] == []


@each_row(
    "text",
    [pytest.param(block, id=f"{page.stem} {n}") for page in PAGES for n, block in enumerate(blocks(page, "yaml"))],
)
def test_yaml_can_be_read(text):
    assert [*yaml.safe_load_all(text)]
