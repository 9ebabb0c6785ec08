"""Only the section `perf_callbacks` of accelerate's config is edited, and never a file that would be damaged by it."""

import os
from pathlib import Path

import pytest
from rows import each_row

from perf_callbacks import ConfigError
from perf_callbacks.launch import accelerate_config

PATH = Path("acc.yaml")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def composed(text, path=PATH):
    path.write_bytes(text.encode())
    return accelerate_config.load(path)


def edited(text, unset=(), **values):
    return accelerate_config.edited(composed(text), values, unset)


FULL = """\
# of this machine
distributed_type: 'NO'  # one process
perf_callbacks:
  window: 20
  gc: observe

fsdp_config: {}
# the end
"""

EDITS = {
    "change": (FULL, {"window": 7}, (), FULL.replace("20", "7")),
    "add": (FULL, {"journal": False}, (), FULL.replace("observe\n", "observe\n  journal: false\n")),
    "remove": (FULL, {}, ("window",), FULL.replace("  window: 20\n", "")),
    "all at once": (
        FULL,
        {"window": 7, "peak_tflops": "989.5", "flops": "off", "output_dir": None},
        ("gc",),
        FULL.replace("20", "7").replace(
            "  gc: observe\n", "  peak_tflops: '989.5'\n  flops: 'off'\n  output_dir: null\n"
        ),
    ),
    "remove the last": (
        FULL,
        {},
        ("window", "gc"),
        "# of this machine\ndistributed_type: 'NO'  # one process\n\nfsdp_config: {}\n# the end\n",
    ),
    "no section": ("a: 1\n# the end\n", {"gc": "off"}, (), "a: 1\n# the end\nperf_callbacks:\n  gc: 'off'\n"),
    "no line end": ("a: 1", {"window": 5}, (), "a: 1\nperf_callbacks:\n  window: 5\n"),
    "an end mark": ("---\na: 1\n...\n", {"window": 5}, (), "---\na: 1\nperf_callbacks:\n  window: 5\n...\n"),
    "an empty file": ("", {"window": 5}, (), "perf_callbacks:\n  window: 5\n"),
    "comments only": ("# later\n", {"window": 5}, (), "# later\nperf_callbacks:\n  window: 5\n"),
    "nothing in it": ("perf_callbacks:\na: 1\n", {"window": 5}, (), "perf_callbacks:\n  window: 5\na: 1\n"),
    "null in it": ("perf_callbacks: ~ # to do\n", {"report": True}, (), "perf_callbacks:\n  report: true\n"),
    "a field without value": ("perf_callbacks:\n  skip:\n", {"skip": "gc"}, (), "perf_callbacks:\n  skip: gc\n"),
    "braces": (
        "perf_callbacks: {window: 20, gc: 'off'} # ours\n",
        {"window": 7, "report": True},
        ("gc",),
        "perf_callbacks:\n  window: 7\n  report: true\n",
    ),
    "empty braces": ("perf_callbacks: {}\na: 1\n", {"window": 7}, (), "perf_callbacks:\n  window: 7\na: 1\n"),
    "comments in the section": (
        "perf_callbacks: # ours\n  # seldom\n  window: 20  # steps\n# the end\n",
        {"gc": "sync"},
        (),
        "perf_callbacks:\n  window: 20\n  gc: sync\n# the end\n",
    ),
    "four spaces": (
        "perf_callbacks:\n    gc: observe",
        {"window": 5},
        (),
        "perf_callbacks:\n  gc: observe\n  window: 5\n",
    ),
    "a text of lines": (
        "perf_callbacks:\n  output_dir: |\n    out\na: 1\n",
        {"output_dir": "there"},
        (),
        "perf_callbacks:\n  output_dir: there\na: 1\n",
    ),
    "carriage returns": (
        "a: 1\r\nperf_callbacks:\r\n  window: 20\r\nb: 2\r\n",
        {"window": 5, "gc": "sync"},
        (),
        "a: 1\r\nperf_callbacks:\r\n  window: 5\r\n  gc: sync\r\nb: 2\r\n",
    ),
    "beyond ASCII": (
        "a: 'ü😀'\nperf_callbacks: {window: 2}\n",
        {"window": 5},
        (),
        "a: 'ü😀'\nperf_callbacks:\n  window: 5\n",
    ),
    "an anchor elsewhere": (
        "a: &a {b: 1}\nc: *a\nperf_callbacks:\n  window: 2\n",
        {"window": 5},
        (),
        "a: &a {b: 1}\nc: *a\nperf_callbacks:\n  window: 5\n",
    ),
}


@each_row("case", EDITS)
def test_only_the_section_is_edited(case):
    text, values, unset, expected = EDITS[case]
    assert edited(text, unset, **values) == expected


REFUSED = {
    "JSON": ('{"a": 1}', {"window": 5}, "acc.yaml is written in braces"),
    "an anchor that others use": (
        "perf_callbacks:\n  window: &n 5\nnum_processes: *n\n",
        {"window": 7},
        "acc.yaml: the section perf_callbacks is written in a way that can't be edited: do it by hand.",
    ),
    "what stays is wrong": (
        "perf_callbacks:\n  windwo: 5\n",
        {"window": 7},
        "acc.yaml, line 2: there is no field 'windwo'; did you mean window?",
    ),
    "a list": (
        "perf_callbacks: [gc]\n",
        {"window": 7},
        "acc.yaml, line 1: perf_callbacks: got a sequence, wanted fields",
    ),
    "twice": (
        "perf_callbacks: {gc: sync}\na: 1\nperf_callbacks: {gc: sync}\n",
        {"window": 7},
        "acc.yaml, line 3: perf_callbacks is set a second time.",
    ),
    "a tag": (
        "perf_callbacks: {output_dir: !!python/object/new:os.system [ls]}\n",
        {"window": 7},
        "acc.yaml, line 1: the tag tag:yaml.org,2002:python/object/new:os.system is not allowed.",
    ),
}


@each_row("case", REFUSED)
def test_what_can_not_be_edited_safely_is_refused(case):
    text, values, sentence = REFUSED[case]
    with pytest.raises(ConfigError) as error:
        edited(text, **values)
    assert str(error.value).startswith(sentence)


def test_a_field_that_is_not_set_can_not_be_removed():
    with pytest.raises(ConfigError) as error:
        edited(FULL, ["report"])
    assert str(error.value) == "acc.yaml doesn't set report."


def test_a_file_is_replaced_at_once_and_keeps_its_mode(tmp_path):
    path, link = tmp_path / "acc.yaml", tmp_path / "link.yaml"
    path.write_text("a: 1\n")
    path.chmod(0o640)
    link.symlink_to(path)
    accelerate_config.save(link, "a: 2\r\n")
    assert path.read_bytes() == b"a: 2\r\n"
    assert path.stat().st_mode & 0o777 == 0o640
    assert link.is_symlink()
    assert sorted(tmp_path.iterdir()) == [path, link]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no os.chown, which the test replaces")
def test_a_file_has_its_owner_and_its_mode_before_it_is_in_place(tmp_path, monkeypatch):
    path, done = tmp_path / "acc.yaml", []
    path.write_text("a: 1\n")
    path.chmod(0o640)
    before, replace = path.stat(), Path.replace

    def replaced(part, target):
        done.append(("replace", part, part.stat().st_mode & 0o777))
        return replace(part, target)

    monkeypatch.setattr(os, "chown", lambda *words: done.append(words))
    monkeypatch.setattr(Path, "replace", replaced)
    accelerate_config.save(path, "a: 2\n")
    part = done[0][0]
    assert done == [(part, before.st_uid, before.st_gid), ("replace", part, 0o640)]


@pytest.mark.parametrize("call", ["replace", "open", "access"])
def test_a_file_that_can_not_be_written_stays_as_it_was(call, tmp_path, monkeypatch):
    path = tmp_path / "acc.yaml"
    path.write_bytes(b"a: 1\n")

    real = getattr(Path, call, None)

    def fail(self, *arguments, **options):
        if "rb" in {*arguments, *options.values()}:
            return real(self, *arguments, **options)
        raise OSError(28, "No space left on device")

    if call == "access":
        monkeypatch.setattr(os, "access", lambda *_: False)
    else:
        monkeypatch.setattr(Path, call, fail)
    with pytest.raises(ConfigError) as error:
        accelerate_config.save(path, "a: 2\n")
    reason = "it is write-protected" if call == "access" else "No space left on device"
    assert str(error.value) == f"{path} can't be written: {reason}."
    assert path.read_bytes() == b"a: 1\n"
    assert [*tmp_path.iterdir()] == [path]


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
