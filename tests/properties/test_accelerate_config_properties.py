"""Whatever a config file says, only its section is edited."""

import re

import pytest
import yaml
from hypothesis import given, strategies as st

from perf_callbacks.kernel.settings import output_directory
from perf_callbacks.kernel.settings.config import rules
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
    """A file, the lines before its section and after it, and what the section sets."""
    section = draw(st.none() | FIELDS)
    middle = dumped({"perf_callbacks": section}) if section is not None else "# none yet\n"
    if section and draw(st.booleans()):
        middle = f"perf_callbacks: {dumped(section, braces=True)}"
    before = f"# first\n{dumped(draw(OTHERS))}"
    after = f"# between\n{dumped({'z' + key: value for key, value in draw(OTHERS).items()})}# last\n"
    return before, middle, after, section or {}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("configs") / "acc.yaml"


@given(file=files(), values=FIELDS, data=st.data())
def test_the_rest_of_any_file_is_as_it_was(path, file, values, data):
    before, middle, after, section = file
    unset = data.draw(st.sets(st.sampled_from(sorted(section)))) if section else set()
    path.write_text(before + middle + after)
    new = accelerate_config.edited(accelerate_config.load(path), values, unset - {*values})
    kept = {name: value for name, value in section.items() if name not in unset} | values
    assert new.startswith(before)
    assert after in new
    content = yaml.safe_load(new) or {}
    assert (content.pop("perf_callbacks", None) or {}) == kept
    assert content == (yaml.safe_load(before + after) or {})
