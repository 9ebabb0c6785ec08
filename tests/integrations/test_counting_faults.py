"""Whatever breaks in counting: training comes to the same, one warning at most, and nothing of it stays behind."""

import itertools
import logging
import warnings as filters

import pytest
import torch
from counted import bits, counts, gpt2, ids, known, left_behind, loop, truth
from faults import EVALUATES_ALWAYS, PACKAGE, Points, profiled, warnings
from sampling import DAY
from trainings import models, runs
from transformers import TrainerCallback

from perf_callbacks import PerfConfig
from perf_callbacks.flops import offline
from perf_callbacks.flops.counting import counter as counters
from perf_callbacks.kernel.records.fit_records import Summary
from perf_callbacks.transformers import PerfCallback


class Spanning(TrainerCallback):
    """Evaluates in the midst of a step."""

    def __init__(self):
        self.trainer = None

    def on_pre_optimizer_step(self, args, state, control, **_):
        self.trainer.evaluate()


class Cut:
    """Collates rows of four lengths."""

    def __init__(self):
        self.calls = itertools.count(8)

    def __call__(self, rows):
        length = 8 + next(self.calls) % 4
        return {name: torch.stack([row[name][:length] for row in rows]) for name in rows[0]}


def outcome(directory, flops, profiler=None):
    """Losses and weights of a training with evaluations in its steps and batches of four shapes."""
    spanning = Spanning()
    arguments = models.training_arguments(directory, max_steps=5, logging_steps=2)
    trainer = models.trainer(
        arguments,
        PerfCallback(PerfConfig(flops=flops)),
        spanning,
        model=gpt2(),
        train_dataset=models.Tokens(32),
        eval_dataset=models.Tokens(4),
        data_collator=Cut(),
    )
    spanning.trainer = trainer
    profiled(profiler, trainer.train)
    losses = [[row.get(key) for key in ("loss", "eval_loss", "train_loss")] for row in trainer.state.log_history]
    return losses, bits(trainer.model)


@pytest.fixture(autouse=True)
def _whole_again():
    """A test that fails must not take the next ones along."""
    found = list(filters.filters)
    yield
    repair(left_behind())
    filters.filters[:] = found


def repair(left):
    from torch.nn.modules import module as modules

    for mode in reversed(left["modes"]):
        mode.leave_stack()
    torch._dynamo.callback_handler.start_callbacks.clear()
    for hooks in (modules._global_forward_pre_hooks, modules._global_forward_hooks):
        hooks.clear()


def test_a_fault_in_the_count_changes_no_training_and_no_number(tmp_path, caplog):
    caplog.set_level(logging.DEBUG, "perf_callbacks")
    undisturbed, points = outcome(tmp_path / "undisturbed", "off"), Points(f"{PACKAGE}/flops")
    outcome(tmp_path / "counted", "count", points)
    right = {record.step: record.model_flops for record in counts(tmp_path / "counted")}
    before, bad = left_behind(), []
    for number, fault in enumerate([*points.draw("count", 4), *points.draw(f"count {DAY}", 8)]):
        caplog.clear()
        directory = tmp_path / str(number)
        broken = {"outcome": outcome(directory, "count", fault) != undisturbed, "world": left_behind() != before}
        errors = [text for text in warnings(caplog, EVALUATES_ALWAYS) if "a bug of ours" in text]
        found = counts(directory)
        (summary,) = runs.records(directory, Summary)
        unknown = any(record.errors or record.uncounted for record in found) or (
            summary.flops and summary.flops.unknown
        )
        # A count for later steps, or none at all, is also told.
        told = errors or unknown or "a bug of ours" in caplog.text or {record.step for record in found} != {*right}
        broken["report"] = fault.happened and not (told or fault.silent)
        broken["more than one warning"] = len(errors) > 1
        broken["number"] = [
            record
            for record in found
            if record.step in right
            and record.model_flops != right[record.step]
            and not (record.lower_bound and record.model_flops < right[record.step])
        ]
        bad += [(str(fault), name, value) for name, value in broken.items() if value]
    assert bad == []


def test_an_error_in_the_bookkeeping_does_not_change_the_number(tmp_path, monkeypatch):
    inner = counters.phase

    def broken(operands):
        if any(operand.shape[-1] == 64 for operand in operands):
            raise ValueError("a bug of ours")
        return inner(operands)

    monkeypatch.setattr(counters, "phase", broken)
    model = models.llama()
    loop(tmp_path, model, [ids(2, 8)] * 4)
    monkeypatch.undo()
    (record,) = counts(tmp_path)
    assert record.errors
    assert all("ValueError" in what for what in record.errors)
    assert (record.model_flops, record.lower_bound) == (truth(models.llama(), ids(2, 8)), False)


def test_a_model_without_an_estimate_is_named_without_a_warning(tmp_path, monkeypatch, caplog):
    def broken(*_args, **_kwargs):
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(offline, "count", broken)
    loop(tmp_path, models.llama(), [ids(2, 8)] * 4, flops="estimate")
    assert [record.source for record in counts(tmp_path)] == ["closed form"]
    assert warnings(caplog, EVALUATES_ALWAYS) == []
    assert known(tmp_path)[-1] == counts(tmp_path)[0].model_flops


def test_a_formula_of_the_users_that_raises_is_an_error_of_the_count_alone(tmp_path, monkeypatch):
    from perf_callbacks.flops import register_flop_formula
    from perf_callbacks.flops.counting import formulas

    monkeypatch.setattr(formulas, "_registered", {})

    @register_flop_formula(torch.ops.aten.addmm)
    def _addmm(*_, **__):
        raise ZeroDivisionError

    losses = loop(tmp_path, torch.nn.Linear(4, 4), [torch.ones(2, 4)] * 4)
    (record,) = counts(tmp_path)
    assert record.errors == {"aten.addmm.default: ZeroDivisionError": 1}
    assert record.lower_bound
    assert len(losses) == 4
