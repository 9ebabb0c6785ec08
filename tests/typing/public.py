"""What a type checker sees of the public names. Checked, never run."""

from typing import Any, Literal

import torch
from lightning.pytorch.callbacks import Callback
from pytorch_lightning.callbacks import Callback as PytorchCallback
from torch.utils.data import DataLoader
from typing_extensions import assert_type

from perf_callbacks import ConfigError, PerfConfig, Summary, __version__
from perf_callbacks.accelerate import Attachment, attach
from perf_callbacks.lightning import PerfCallback as LightningCallback
from perf_callbacks.loop import Measurement, measure
from perf_callbacks.pytorch_lightning import PerfCallback as PytorchLightningCallback
from perf_callbacks.transformers import PerfCallback

VERSION: str = __version__


def config() -> None:
    settings = PerfConfig(flops="estimate", gc_interval=10, peak_tflops="bf16=989.5")
    assert_type(settings.enabled, bool)
    assert_type(settings.flops, Literal["count", "estimate", "off"])
    assert_type(settings.peak_tflops, str | None)
    assert_type(settings.measure_peak, Literal["auto", "on", "off"])
    assert_type(settings.checklist, Literal["on", "off"])
    assert_type(settings.skip, str)
    assert_type(settings.gc, Literal["sync", "freeze", "observe", "off"])
    assert_type(settings.gc_interval, int)
    assert_type(settings.affinity, Literal["auto", "node", "off"])
    assert_type(settings.loaders, Literal["apply", "advise", "off"])
    assert_type(settings.exchange, Literal["on", "off"])
    assert_type(settings.stragglers, Literal["on", "off"])
    assert_type(settings.window, int)
    assert_type(settings.stall_after, str)
    assert_type(settings.journal, bool)
    assert_type(settings.report, bool)
    assert_type(settings.output_dir, str | None)
    assert_type(settings.baseline, str | None)
    assert_type(settings.max_journal_mb, int)


def wrong_settings() -> None:
    PerfConfig(gc="sinc")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    PerfConfig(True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    PerfConfig().gc = "off"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


def refused() -> str:
    try:
        PerfConfig(window=0)
    except ConfigError as error:
        assert_type(error, ConfigError)
        return str(error)
    return ""


def accelerated(accelerator: Any) -> None:
    perf = attach(accelerator, PerfConfig(), resume={"step": 4})
    assert_type(perf, Attachment)
    assert_type(perf.summary, Summary | None)
    assert_type(perf.state(), dict[str, Any])
    perf.close()


def loop(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    pairs: list[tuple[torch.Tensor, int]] = []
    with measure(model=model, optimizer=optimizer, loader=pairs) as perf:
        assert_type(perf, Measurement[tuple[torch.Tensor, int]])
        for batch in perf.loader:
            assert_type(batch, tuple[torch.Tensor, int])
        assert_type(perf.row(), dict[str, float])
        assert_type(perf.state(), dict[str, Any])
        with perf.evaluation(), perf.checkpoint():
            pass
    assert_type(perf.summary, Summary | None)
    assert_type(len(perf.loader), int)


def loop_over_a_loader(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader[dict[str, torch.Tensor]]
) -> None:
    with measure(model=model, optimizer=optimizer, loader=loader, config=PerfConfig(), resume={"step": 1}) as perf:
        assert_type(perf, Measurement[Any])  # torch does not say what the iterator of a DataLoader yields


def loop_without_a_loader(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with measure(model=model, optimizer=optimizer) as perf:
        with perf.data():
            x = torch.ones(2)
        perf.batch(x)
        perf.batch(samples=2, tokens=8)


def the_block_does_not_swallow(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    with measure(model=model, optimizer=optimizer, loader=[1]):
        return 1


def figures(summary: Summary) -> None:
    assert_type(summary.run_id, str)
    assert_type(summary.steps, int)
    assert_type(summary.step_time, float | None)
    assert_type(summary.samples, int | None)
    assert_type(summary.failure, str | None)


def callback() -> None:
    perf = PerfCallback(PerfConfig())
    assert_type(perf.summary, Summary | None)
    assert_type(PerfCallback().summary, Summary | None)
    PerfCallback(window=10)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def lightning_callbacks() -> list[Callback]:
    perf = LightningCallback(PerfConfig())
    assert_type(perf.summary, Summary | None)
    assert_type(perf.enabled, bool)
    LightningCallback(window=10)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    return [perf, LightningCallback()]


def pytorch_lightning_callbacks() -> list[PytorchCallback]:
    return [PytorchLightningCallback(), PytorchLightningCallback(config=PerfConfig())]
