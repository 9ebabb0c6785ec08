"""Whatever a config file says, its section is read, and accelerate gets the rest."""

import re

import pytest
import yaml
from hypothesis import given, strategies as st

from perf_callbacks.kernel.settings import output_directory
from perf_callbacks.kernel.settings.config import rules
from perf_callbacks.kernel.settings.in_force import parse
from perf_callbacks.launch import accelerate_config


def is_directory(text):
    return bool(text) and re.fullmatch(output_directory.PATTERN, text) is not None


LEGAL = {
    "window": st.integers(1, 99),
    "flops": st.sampled_from(rules()["flops"].choices),
    "report": st.booleans(),
    "output_dir": st.none() | st.text("abc: #'\"{},&*!ü", min_size=1).map(str.strip).filter(is_directory),
    "skip": st.sampled_from(["", "gc", "gc, loaders"]),
}
FIELDS = st.fixed_dictionaries({}, optional=LEGAL)
SCALARS = st.none() | st.booleans() | st.integers() | st.text("abc: #'\"\n-ü", max_size=8)
OTHERS = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), SCALARS | st.lists(SCALARS, max_size=3), max_size=4)


def dumped(content, *, braces=False):
    text = yaml.safe_dump(content, default_flow_style=braces, sort_keys=False, allow_unicode=True)
    return text if content else ""


@st.composite
def files(draw):
    """The text of a file, what its section sets, and what all else sets."""
    section = draw(st.none() | FIELDS)
    middle = dumped({"perf_callbacks": section}) if section is not None else "# none yet\n"
    if section and draw(st.booleans()):
        middle = f"perf_callbacks: {dumped(section, braces=True)}"
    others = f"# first\n{dumped(draw(OTHERS))}"
    after = f"# between\n{dumped({'z' + key: value for key, value in draw(OTHERS).items()})}# last\n"
    return others + middle + after, section or {}, yaml.safe_load(others + after) or {}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("configs") / "acc.yaml"


@given(file=files())
def test_any_section_is_read_and_the_rest_is_left_to_accelerate(path, file):
    text, section, others = file
    path.write_text(text)
    config = accelerate_config.load(path)
    assert parse(config.entries) == section
    assert accelerate_config.without_section(config) == others
