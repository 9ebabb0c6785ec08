"""What limits a run is said by all integrations, on a clock that only moves where a test moves it."""

import dataclasses
import re
from itertools import chain
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader
from trainings import lightning_kit
from trainings.accelerated import an_accelerator
from trainings.models import Tokens, llama, trainer, training_arguments
from trainings.runs import records, unwrapped

from perf_callbacks import PerfConfig
from perf_callbacks.accelerate import attach
from perf_callbacks.advice import live_line, observer as advising
from perf_callbacks.kernel.fit import environment
from perf_callbacks.kernel.process import cpu_time
from perf_callbacks.kernel.records.fit_records import Finding, Summary
from perf_callbacks.loop import measure
from perf_callbacks.report import cards
from perf_callbacks.transformers import PerfCallback

STEPS, BATCH = 12, 2


class Slow(Tokens):
    """Rows that are waited for."""

    def __init__(self, clock):
        super().__init__(STEPS * BATCH)
        self.clock = clock

    def __getitem__(self, index):
        self.clock.sleep(0.5)
        return super().__getitem__(index)


@pytest.fixture(autouse=True)
def _eight_cpus(monkeypatch):
    """What this machine does for others is nothing to the clock of a test."""
    monkeypatch.setattr(cpu_time, "read", lambda _thread: None)
    read = environment.read
    monkeypatch.setattr(environment, "read", lambda **known: dataclasses.replace(read(**known), cpus=8))


@pytest.fixture
def fit(clock, tmp_path):
    """What a fit needs, each part as slow as the clock says."""
    model = llama()
    model.model.register_forward_pre_hook(lambda *_: clock.sleep(1.0))
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.register_step_post_hook(lambda *_: clock.sleep(0.5))  # before the hook that ends our time
    return SimpleNamespace(
        model=model,
        optimizer=optimizer,
        loader=DataLoader(Slow(clock), batch_size=BATCH),
        config=PerfConfig(output_dir=str(tmp_path), flops="off"),
        directory=tmp_path,
        epochs=1,
    )


def through_loop(fit):
    with measure(model=fit.model, optimizer=fit.optimizer, loader=fit.loader, config=fit.config) as perf:
        for batch in chain(*[perf.loader] * fit.epochs):
            fit.model(**batch).loss.backward()
            fit.optimizer.step()
            fit.optimizer.zero_grad()
    return perf.summary


def through_accelerate(fit):
    accelerator = an_accelerator(fit.directory)
    attached = attach(accelerator, fit.config)
    model, optimizer, loader = accelerator.prepare(fit.model, fit.optimizer, fit.loader)
    for batch in chain(*[loader] * fit.epochs):
        accelerator.backward(model(**batch).loss)
        optimizer.step()
        optimizer.zero_grad()
    accelerator.end_training()
    return attached.summary


def through_trainer(fit):
    callback = PerfCallback(fit.config)
    arguments = training_arguments(
        fit.directory, per_device_train_batch_size=BATCH, max_steps=STEPS * fit.epochs, logging_steps=4
    )
    trained = trainer(
        arguments, callback, train_dataset=fit.loader.dataset, model=fit.model, optimizers=(fit.optimizer, None)
    )
    trained.train()
    return callback.summary


def through_lightning(fit, prepare=lambda: None):
    kinds = lightning_kit.tree("lightning")

    class Module(kinds.pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = fit.model

        def training_step(self, batch, batch_idx):
            return self.model(**batch).loss

        def configure_optimizers(self):
            prepare()
            return fit.optimizer

    callback = kinds.PerfCallback(fit.config)
    lightning_kit.trainer(fit.directory, callback, max_steps=STEPS * fit.epochs).fit(Module(), fit.loader)
    return callback.summary


@pytest.mark.parametrize(
    ("train", "workers", "fused"),
    [
        (through_loop, "DataLoader(num_workers=1)", "torch.optim.AdamW(..., fused=True)"),
        (through_accelerate, "DataLoader(num_workers=1)", "torch.optim.AdamW(..., fused=True)"),
        (through_lightning, "DataLoader(num_workers=1)", "torch.optim.AdamW(..., fused=True)"),
        # the trainer ignores `optim`, because the program makes the optimizer
        (through_trainer, "TrainingArguments(dataloader_num_workers=1)", "torch.optim.AdamW(..., fused=True)"),
    ],
)
@pytest.mark.usefixtures("accelerate_state")
def test_a_slow_loader_and_an_unfused_optimizer(train, workers, fused, fit):
    summary = train(fit)
    data, updates = summary.findings
    assert (data.cause, data.remedy) == ("data", workers)
    assert re.search(" 3.% .*num_workers=0", data.evidence)
    tensors = len([*fit.model.parameters()])
    assert (updates.cause, updates.remedy) == ("optimizer", fused)
    assert re.search(f" 1.% .*AdamW.* {tensors} ", updates.evidence)
    assert (data.share / 1.25, updates.share) == (pytest.approx(0.36, abs=0.04), pytest.approx(0.23, abs=0.03))
    assert sum(summary.wall_seconds.values()) == pytest.approx(2.5 * STEPS, rel=0.1)
    assert records(fit.directory, Finding) == list(summary.findings)
    assert records(fit.directory, Summary)[-1].findings == summary.findings


@pytest.mark.parametrize("train", [through_loop, through_accelerate, through_trainer, through_lightning])
@pytest.mark.usefixtures("accelerate_state")
def test_workers_that_take_long_to_start_in_each_epoch(train, fit, clock, monkeypatch):
    iterate, read = DataLoader.__iter__, advising.read

    def start(loader):
        clock.sleep(20.0)
        return iterate(loader)

    monkeypatch.setattr(DataLoader, "__iter__", start)
    monkeypatch.setattr(advising, "read", lambda *args, **kw: dataclasses.replace(read(*args, **kw), workers=1))
    fit.epochs = 3
    summary = train(fit)
    evidence = [found.evidence for found in summary.findings if "persistent" in found.remedy]
    assert len(evidence) == 1
    assert re.search(" 2 epochs .* (28|29|32)% ", evidence[0])


def test_what_lightning_prepares_belongs_to_the_startup(fit, clock):
    summary = through_lightning(fit, lambda: clock.sleep(8.0))
    assert summary.wall_seconds["startup"] == 8.0
    assert sum(summary.wall_seconds.values()) == pytest.approx(8.0 + 2.5 * STEPS)


def test_values_that_are_read_between_steps_are_told_with_their_line(fit, clock):
    loader, config = DataLoader(Tokens(STEPS * BATCH), batch_size=BATCH), dataclasses.replace(fit.config, flops="count")
    with measure(model=fit.model, optimizer=fit.optimizer, loader=loader, config=config) as perf:
        for batch in perf.loader:
            loss = fit.model(**batch).loss
            loss.backward()
            fit.optimizer.step()
            fit.optimizer.zero_grad()
            loss.item()
            clock.sleep(2.0)
    finding = perf.summary.findings[0]
    assert finding.cause == "sync"
    assert "test_verdict.py:" in finding.evidence


@pytest.mark.parametrize(("attention", "advised"), [("eager", 1), ("sdpa", 0)])
def test_a_fit_opens_with_advice_that_needs_no_run(fit, capsys, attention, advised):
    fit.model.config._attn_implementation = attention
    through_loop(fit)
    printed = unwrapped(capsys.readouterr().out).partition("perf_callbacks: ")[0]
    told = printed.splitlines()[4:]
    assert len(told) == advised
    assert all(line.startswith("  advice: Attention ") for line in told)


def test_a_cause_that_holds_is_told_while_training_goes_on(fit, capsys, monkeypatch):
    monkeypatch.setattr(live_line, "WINDOW_SECONDS", 10.0)
    through_loop(fit)
    printed = unwrapped(capsys.readouterr().out)
    (line,) = [line for line in printed.splitlines() if "of the last" in line]
    assert re.match(r"perf_callbacks: Waiting for data .* 4\d% of the last 1\d s: num_workers=0; try", line)


def test_a_rule_that_fails_costs_its_own_finding_alone(fit, monkeypatch, caplog):
    def broken(*_):
        return 1 / 0

    monkeypatch.setattr(advising.table, "RULES", (broken, *advising.table.RULES))
    summary = through_loop(fit)
    assert (summary.findings[0].cause, summary.findings[-1].cause, summary.failure) == ("data", "failed", None)
    assert "The rule `broken` of the advice failed: ZeroDivisionError" in summary.findings[-1].evidence
    assert caplog.text.count("perf_callbacks: The rule `broken` of the advice failed: ZeroDivisionError") == 1


def test_advice_that_fails_is_not_advice_in_vain(fit, monkeypatch):
    monkeypatch.setattr(advising.compilations, "since", lambda _: 1 / 0)
    summary = through_loop(fit)
    assert ([finding.cause for finding in summary.findings], summary.failure) == (["failed"], None)
    assert cards.verdict(summary) == "No verdict, because a rule of the advice failed."


def test_facts_that_can_not_be_read_cost_the_advice_alone(fit):
    class Odd(list):
        @property
        def num_workers(self):
            raise RuntimeError("no")

    fit.loader = Odd(fit.loader)
    summary = through_loop(fit)
    assert ([finding.cause for finding in summary.findings], summary.failure) == (["failed"], None)
    assert (summary.findings[0].evidence, summary.steps) == ("The advice failed: RuntimeError: no", STEPS)


def test_a_fit_is_accounted_for_while_it_lasts(fit):
    with measure(model=fit.model, optimizer=fit.optimizer, loader=fit.loader, config=fit.config) as perf:
        for step, batch in enumerate(perf.loader):
            if step == STEPS - 2:
                so_far = perf.summary
            fit.model(**batch).loss.backward()
            fit.optimizer.step()
            fit.optimizer.zero_grad()
    assert [finding.cause for finding in so_far.findings] == ["data", "optimizer"]
    assert sum(so_far.wall_seconds.values()) == pytest.approx(2.5 * (STEPS - 2) + 1.0)
    assert so_far.wall_seconds["other"] == pytest.approx(1.0)  # the batch that the step has waited for
