"""The summary of a fit on disk while the fit goes on."""

import json
import os
from functools import partial

import pytest
import torch
from fake_watchdog import FakeWatchdog

from perf_callbacks import PerfConfig
from perf_callbacks.kernel.engine.engine import Engine
from perf_callbacks.kernel.fit import summary_file
from perf_callbacks.kernel.records import interim
from perf_callbacks.kernel.records.codec import Entry
from perf_callbacks.kernel.records.fit_records import Run, Summary
from perf_callbacks.kernel.records.journal_file import read
from perf_callbacks.loop import measure


class AtOnce:
    """A thread that runs when it starts."""

    def __init__(self, target, args, **_):
        self.start = partial(target, *args)


@pytest.fixture
def watchdog(monkeypatch):
    fake = FakeWatchdog()
    monkeypatch.setattr(summary_file, "WATCHDOG", fake)
    monkeypatch.setattr(summary_file, "Thread", AtOnce)
    return fake


def train(directory, after_step=lambda step, perf: None, steps=8, **config):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = PerfConfig(output_dir=str(directory), **config)
    with measure(model=model, optimizer=optimizer, loader=[torch.ones(2, 4)] * steps, config=config) as perf:
        for step, batch in enumerate(perf.loader, 1):
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            after_step(step, perf)
    return perf


def path(directory):
    return directory / "perf_callbacks" / "summary0.json"


def stored(directory):
    return json.loads(path(directory).read_text())


def test_the_summary_so_far_is_replaced_every_ten_seconds(tmp_path, watchdog):
    seen = []

    def after_step(step, perf):
        perf.row()  # reads the steps
        watchdog.pass_seconds(5)
        seen.append(stored(tmp_path)["step"])

    train(tmp_path, after_step)
    assert seen == [1, 2, 2, 4, 4, 6, 6, 8]


def test_at_the_end_the_file_has_the_summary_of_the_journal(tmp_path, watchdog):
    perf = train(tmp_path, lambda *_: watchdog.pass_seconds(1))
    journal = tmp_path / "perf_callbacks" / "rank0.jsonl"
    run, *_, last = [entry.record for entry in read(journal)]
    assert isinstance(run, Run)
    entry = interim.read(journal, run)
    assert entry is not None
    assert entry.record == last == perf.summary
    watchdog.pass_seconds(100)
    assert interim.read(journal, run) == entry


def test_a_disk_error_costs_the_file_alone_and_is_logged_once(tmp_path, watchdog, caplog):
    path(tmp_path).mkdir(parents=True)
    (path(tmp_path) / "kept").touch()
    perf = train(tmp_path, lambda *_: watchdog.pass_seconds(20))
    (message,) = caplog.messages
    assert message.startswith("perf_callbacks: no summary0.json beside the journal: ")
    assert (perf.summary.steps, perf.summary.failure) == (8, None)
    assert [entry for entry in read(tmp_path) if isinstance(entry.record, Summary)]
    assert {file.name for file in path(tmp_path).parent.iterdir()} == {"rank0.jsonl", "summary0.json"}


def test_a_summary_that_changes_while_it_is_made_is_skipped(tmp_path, watchdog, monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("dictionary changed size during iteration")

    def after_step(step, perf):
        if step == 1:
            with monkeypatch.context() as patched:
                patched.setattr(Engine, "interim_summary", fail)
                watchdog.pass_seconds(1)
            assert not path(tmp_path).exists()
            watchdog.pass_seconds(10)
            assert stored(tmp_path)["step"] == 1

    train(tmp_path, after_step)
    assert not caplog.messages


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_leaves_the_file_alone(tmp_path, watchdog):
    parent = os.getpid()

    def after_step(step, perf):
        watchdog.pass_seconds(1)
        if step == 4:
            before = path(tmp_path).read_bytes()
            child = os.fork()
            if not child:
                raise RuntimeError("the child ends its fit")
            os.waitpid(child, 0)
            assert path(tmp_path).read_bytes() == before

    try:
        train(tmp_path, after_step)
    finally:
        if os.getpid() != parent:
            os._exit(0)


def test_a_file_without_a_summary_of_the_attempt_is_not_read(tmp_path, watchdog):
    train(tmp_path)
    journal = tmp_path / "perf_callbacks" / "rank0.jsonl"
    run = next(iter(read(journal))).record
    assert isinstance(interim.read(journal, run), Entry)
    train(tmp_path)
    assert interim.read(journal, run) is None  # but of the second attempt
    for text in ("", "no", "{}", '{"type":"summary","t":1}', "[" * 10**5):
        path(tmp_path).write_text(text)
        assert interim.read(journal, run) is None
    path(tmp_path).unlink()
    assert interim.read(journal, run) is None
