"""Whatever breaks in counting: training comes to the same, one warning at most, and nothing of it stays behind."""

import itertools
import warnings as filters

import pytest
import torch
from counted import bits, counts, gpt2, ids, known, left_behind, loop, truth
from faults import EVALUATES_ALWAYS, Fault, parts, warnings
from sampling import half_slow, sampled
from trainings import models, runs
from transformers import TrainerCallback

from perf_callbacks import PerfConfig
from perf_callbacks.flops.counting import counter as counters
from perf_callbacks.kernel.records.fit_records import Summary
from perf_callbacks.transformers import PerfCallback

INSIDE = {
    "flops.counting.counter.FlopCounter": "_count _turn",
    "flops.counting.formulas": "name",
    "flops.counting.counter": "phase number_format tensors are_batched",
    "flops.counting.coverage.Weights": "see behind multiplied passed",
    "flops.counting.count_limit.CountLimit": "reached",
    "flops.counting.observed.StepObservations": "sort product uncounted _copied _note _read",
    "flops.counting.observed": "formula _causal _shape _opaque",
}
"""What is done for each operation, and each module: errors there are counted, and nothing else."""
AROUND = {
    "flops.observer.Counting": "step_began step_ended shape_seen span_began span_ended trained _next",
    "flops.count_records.CountRecords": "check_peak note_apart",
    "flops.count_schedule.CountSchedule": "next recount missing wanted",
    "flops.counting.counter.FlopCounter": "hook unhook",
    "flops.counting.stacked_mode.StackedMode": "enter_stack leave_stack",
    "flops.counting.count_window.CountWindow": "open _leave",
    "flops.counting.module_shares.ModuleShares": "_path _take_activations",
    "flops.counting.module_shares": "_new_results",
    "flops.by_shape.shaped_work.ShapedWork": "of knows wants look settle",
    "flops.by_shape.shaped_work": "_each",
    "flops.by_shape.shape_counts": "_fold keep",
    "kernel.engine.tape.Tape": "unfollow",
}
ONCE = {
    "flops.observer": "counted",
    "flops.count_records.CountRecords": "write",
    "flops.observer.Counting": "closed _open _shut _store_count _await",
    "flops.count_schedule.CountSchedule": "affordable spend",
    "flops.training_filter.TrainingFilter": "__init__",
    "flops.counting.counter.FlopCounter": "__init__",
    "flops.counting.count_window.CountWindow": "__init__",
    "flops.counting.count_limit.CountLimit": "__init__",
    "flops.counted_step.CountedStep": "__init__",
    "flops.model_copy.ModelCopy": "check",
    "kernel.fit.module_paths.ModulePaths": "__init__",
    "flops.counting.module_shares.ModuleShares": "__init__ _line",
    "flops.counting.coverage.Weights": "coverage multiplied_elements",
    "flops.by_shape.shaped_work.ShapedWork": "learn summary",
    "flops.by_shape.scaling.Scaling": "predict",
    "kernel.engine.tape.Tape": "follow",
    "kernel.batches.reader.BatchReader": "forget note look_up",
}
"""As before, but called once or twice in the fit."""
LEFT = {
    "flops.counting.counter.FlopCounter.unhook": {"before", "after", "compilations", "filters"},
    "flops.counting.count_window.CountWindow._leave": {"modes"},
    "flops.counting.stacked_mode.StackedMode.leave_stack": {"modes"},
}
"""What takes something back can't do so where it is broken itself. All the rest is taken back."""


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


def outcome(directory, flops):
    """What training with all of it comes to."""
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
    trainer.train()
    losses = [[row.get(key) for key in ("loss", "eval_loss", "train_loss")] for row in trainer.state.log_history]
    return losses, bits(trainer.model)


@pytest.fixture(autouse=True)
def _whole_again():
    """A test that fails must not take the next ones along."""
    found = list(filters.filters)
    yield
    repair(left_behind())
    filters.filters[:] = found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return outcome(tmp_path_factory.mktemp("undisturbed"), "off")


@pytest.fixture(scope="module")
def true(tmp_path_factory):
    """Model FLOPs of the counted steps."""
    directory = tmp_path_factory.mktemp("counted")
    outcome(directory, "count")
    return {record.step: record.model_flops for record in counts(directory)}


@pytest.mark.parametrize(("part", "first"), half_slow([*sampled(parts(AROUND), [0, 2]), *sampled(parts(ONCE), [0])]))
def test_a_part_that_breaks_around_the_count_costs_one_warning(  # noqa: PLR0917 fixtures
    tmp_path, monkeypatch, caplog, undisturbed, part, first
):
    before = left_behind()
    with monkeypatch.context() as patch:
        fault = Fault(patch, part, first)
        assert outcome(tmp_path, "count") == undisturbed
    changed = {name for name, value in left_behind().items() if value != before[name]}
    assert changed <= LEFT.get(part, set())
    assert fault.happened
    assert ["a bug of ours" in text for text in warnings(caplog, EVALUATES_ALWAYS)] == [True]


def repair(left):
    from torch.nn.modules import module as modules

    for mode in reversed(left["modes"]):
        mode.leave_stack()
    torch._dynamo.callback_handler.start_callbacks.clear()
    for hooks in (modules._global_forward_pre_hooks, modules._global_forward_hooks):
        hooks.clear()


@pytest.mark.parametrize("part", parts(INSIDE))
def test_a_part_that_breaks_inside_the_count_costs_its_own_numbers(  # noqa: PLR0917 fixtures
    tmp_path, monkeypatch, caplog, undisturbed, true, part
):
    before = left_behind()
    with monkeypatch.context() as patch:
        fault = Fault(patch, part, 3)
        assert outcome(tmp_path, "count") == undisturbed
    assert left_behind() == before
    assert warnings(caplog, EVALUATES_ALWAYS) == []
    (summary,) = runs.records(tmp_path, Summary)
    assert (summary.steps, summary.failure) == (5, None)
    found = counts(tmp_path)
    told = any(record.errors or record.uncounted for record in found) or (not found and summary.flops.unknown)
    assert told or not fault.happened
    for record in found:
        there = true[record.step]
        assert record.model_flops == there or (record.model_flops < there and record.lower_bound)


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
    Fault(monkeypatch, "flops.offline._emptied", 0)
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
