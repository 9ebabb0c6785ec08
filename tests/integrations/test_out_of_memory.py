"""A failed allocation ends the fit: the report, and the exception that goes on."""

import pytest
import torch
from trainings.doors import DOORS, INTEGRATIONS
from trainings.runs import records

from perf_callbacks.journal import OutOfMemory
from perf_callbacks.kernel.process.device import Cpu
from perf_callbacks.kernel.process.device_facts import Allocator
from perf_callbacks.memory import observer as memory, step_memory

pytestmark = [pytest.mark.usefixtures("accelerate_state"), pytest.mark.filterwarnings("ignore::RuntimeWarning")]

MESSAGE = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB"


class Fail:
    """Raise an error from some step on."""

    def __init__(self, error, step):
        self.error, self.step = error, step

    def __call__(self, *_args, **_kwargs):
        if self.training.step >= self.step:
            raise self.error


def reports(directory, kind, caplog, *, step=3, error=None, evaluate=0):
    error = error or torch.OutOfMemoryError(MESSAGE)
    act = Fail(error, step)
    place = "a layer" if "a layer" in kind.PLACES else "the model"
    act.training = kind(directory, place, act, accumulate=2, evaluate=evaluate, save=2)
    with pytest.raises(type(error)) as caught:
        act.training.run()
    assert caught.value is error
    said = [record.getMessage() for record in caplog.records if "out of memory" in record.getMessage()]
    return records(directory, OutOfMemory), said


@pytest.mark.parametrize("door", INTEGRATIONS)
def test_each_integration_reports_and_lets_the_exception_go_on(tmp_path, caplog, monkeypatch, door):
    monkeypatch.setattr(Cpu, "headroom", lambda _: 10**9)
    monkeypatch.setattr(step_memory, "anything_compiled", lambda: False)  # another test may have compiled something
    found, said = reports(tmp_path, INTEGRATIONS[door], caplog)
    assert len(found) == len(said) == 1
    (report,) = found
    assert (report.stage, report.device, report.error) == ("forward", "cpu", MESSAGE)
    assert report.requested_gb == pytest.approx(2 * 2**30 / 1e9)
    assert report.weights_gb > 0
    assert report.largest
    assert said[0].startswith(f"perf_callbacks: rank 0: out of memory on cpu in the forward after {report.step} step")
    assert report.fitting_micro_batch > report.micro_batch > 0


def test_a_failure_in_an_evaluation_says_nothing_of_the_batches_of_training(tmp_path, caplog):
    ((report,), (said,)) = reports(tmp_path, DOORS["transformers"], caplog, evaluate=2)
    assert (report.stage, report.step, report.fitting_micro_batch, report.layers_to_checkpoint) == (
        "evaluation",
        2,
        None,
        None,
    )
    assert "fitted" not in said


def test_a_failure_before_a_measured_step_leaves_unknown_what_fits(tmp_path, caplog):
    ((report,), (said,)) = reports(tmp_path, DOORS["loop"], caplog, step=0)
    assert (report.step, report.fitting_micro_batch) == (0, None)
    assert "unknown micro-batch" in said


def test_the_layers_that_had_run_say_about_what_fits(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(Cpu, "allocator", lambda _: Allocator(4 * 10**9, 5 * 10**9, 1, 4 * 10**9))
    monkeypatch.setattr(Cpu, "headroom", lambda _: 10**9)
    ((report,), (said,)) = reports(tmp_path, DOORS["transformers"], caplog, step=0)
    assert (report.layers, report.reserved_gb, report.micro_batch) == (1, 5.0, 4)
    assert report.other_gb == pytest.approx(4.0, abs=0.01)
    assert report.about_micro_batch == 4  # 5 GB of 4 GB: five samples without the state that Adam is to make
    assert "about micro-batch 4 would have fitted" in said


@pytest.mark.parametrize("error", [ValueError("no"), RuntimeError("mat1 and mat2")])
def test_other_errors_are_not_reported(tmp_path, caplog, error):
    assert reports(tmp_path, DOORS["loop"], caplog, error=error) == ([], [])


def test_a_report_that_fails_changes_nothing(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(memory, "Holdings", lambda *_: 1 / 0)
    found, said = reports(tmp_path, DOORS["loop"], caplog)
    assert (found, said) == ([], [])


def test_a_fit_that_ends_while_an_older_error_is_handled_is_no_failure(tmp_path, caplog):
    try:
        [].pop()
    except IndexError as error:
        error.__cause__ = torch.OutOfMemoryError(MESSAGE)
        DOORS["loop"](tmp_path).run()
    assert records(tmp_path, OutOfMemory) == []
