"""The section `perf_callbacks` of accelerate's config is read, and nothing else."""

from pathlib import Path

import pytest

from perf_callbacks import ConfigError
from perf_callbacks.launch import accelerate_config

PATH = Path("acc.yaml")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def composed(text, path=PATH):
    path.write_bytes(text.encode())
    return accelerate_config.load(path)


REFUSED = {
    "a list": ("perf_callbacks: [gc]\n", "acc.yaml, line 1: perf_callbacks: got a sequence, wanted fields"),
    "twice": (
        "perf_callbacks: {gc: sync}\na: 1\nperf_callbacks: {gc: sync}\n",
        "acc.yaml, line 3: perf_callbacks is set a second time.",
    ),
    "a tag": (
        "perf_callbacks: {output_dir: !!python/object/new:os.system [ls]}\n",
        "acc.yaml, line 1: the tag tag:yaml.org,2002:python/object/new:os.system is not allowed.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_section_that_is_no_section_is_refused(case):
    text, sentence = REFUSED[case]
    with pytest.raises(ConfigError) as error:
        composed(text)
    assert str(error.value).startswith(sentence)


def test_the_section_of_any_form_is_read():
    texts = {
        "": {},
        "# later\n": {},
        "perf_callbacks:\na: 1\n": {},
        "perf_callbacks: ~ # to do\n": {},
        "perf_callbacks: {}\na: 1\n": {},
        "perf_callbacks:\n  skip:\n": {"skip": ""},
        "a: 1\r\nperf_callbacks:\r\n  window: 20\r\nb: 2\r\n": {"window": "20"},
        "perf_callbacks: {window: 20, gc: 'off'} # ours\n": {"window": "20", "gc": "off"},
        "---\nperf_callbacks:\n    gc: observe  # seldom\n...\n": {"gc": "observe"},
    }
    wrong = [text for text, fields in texts.items() if {e.name: e.text for e in composed(text).entries} != fields]
    assert wrong == []


@pytest.mark.parametrize("name", ["acc.yaml", "acc.json"])
def test_accelerate_gets_all_but_the_section(name, tmp_path):
    text = '{\n\t"perf_callbacks": {"window": 5},\n\t"mixed_precision": "no", "n": [1, 2.5, null, "ü"]\n}'
    config = composed(text.replace("\t", " " if name == "acc.yaml" else "\t"), tmp_path / name)
    assert [(entry.name, entry.text) for entry in config.entries] == [("window", "5")]
    assert accelerate_config.without_section(config) == {"mixed_precision": "no", "n": [1, 2.5, None, "ü"]}


def test_a_tag_outside_of_the_section_runs_nothing(tmp_path):
    config = composed("a: !!python/object/apply:os.mkdir [boom]\n")
    with pytest.raises(ConfigError, match=r"acc.yaml can't be read: could not determine a constructor for the tag"):
        accelerate_config.without_section(config)
    assert [*tmp_path.iterdir()] == [tmp_path / "acc.yaml"]
