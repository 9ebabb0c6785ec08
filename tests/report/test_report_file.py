"""The report that a fit leaves when it ends."""

import re

import pytest
import torch
from torch import nn

from perf_callbacks import PerfConfig
from perf_callbacks.loop import measure
from perf_callbacks.report import report_file


def train(directory, **config):
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = [torch.ones(2, 8)] * 4
    config = PerfConfig(output_dir=str(directory), flops="off", **{"report": True} | config)
    with measure(model=model, optimizer=optimizer, loader=loader, config=config) as perf:
        for batch in perf.loader:
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


def test_the_report_lies_beside_the_journal_and_its_time_is_told(tmp_path, capsys):
    train(tmp_path)
    path = tmp_path / "perf_callbacks" / "report.html"
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(rf"report {re.escape(str(path))} \(made in [\d.]+ m?s\)", last)
    assert "Each point is one step" in path.read_text()
    assert "Rank 0 wrote no summary" not in path.read_text()


def test_the_path_of_a_report_shows_no_control_character(tmp_path, capsys):
    train(tmp_path / "a\x1b[2J")
    assert "\x1b" not in capsys.readouterr().out


def test_the_report_is_of_the_fit_that_has_ended(tmp_path):
    train(tmp_path, report=False)
    assert not (tmp_path / "perf_callbacks" / "report.html").exists()
    train(tmp_path)
    assert (
        "These journals hold 2 fits, and this is number 2." in (tmp_path / "perf_callbacks" / "report.html").read_text()
    )


def test_without_a_journal_the_log_says_why_there_is_no_report(tmp_path, caplog):
    train(tmp_path, journal=False)
    assert caplog.messages == ["perf_callbacks: no report: it is made from the journal, and there is none."]


def test_a_report_that_fails_costs_the_report_alone(tmp_path, caplog, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(report_file, "write", fail)
    train(tmp_path)
    [message] = caplog.messages
    assert message.startswith("perf_callbacks: no report: OSError")
    monkeypatch.setattr(report_file, "write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path)
