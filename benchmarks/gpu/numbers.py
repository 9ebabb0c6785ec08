"""Numbers beside an independent truth: the machine, FLOPs by hand, weights without the callback."""

import contextlib
import os
import statistics
import subprocess
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace

import torch

from gpu import stamps
from gpu.bench import DENSE_BF16, NEEDS_CUDA, PEAKS, Bench, MissingError, Row, attempted, one_line, records, train
from gpu.models import Case, llama, small, stack, transformer
from perf_callbacks.flops.peaks import matmul_peak
from perf_callbacks.kernel.process import device
from perf_callbacks.kernel.records.flops_record import Flops

ASKED = ("name", "driver_version", "clocks.sm", "clocks.max.sm", "power.limit", "temperature.gpu", "mig.mode.current")


def machine(bench: Bench) -> Iterator[Row]:
    """The versions, the clocks under load, and the best product beside the published peak."""
    under_test = device.of(bench.device)
    yield "torch", torch.__version__
    yield "CUDA, as torch was built", str(torch.version.cuda or NEEDS_CUDA)
    yield "device", f"{under_test.name}, {bench.device}"
    yield "features, as the package knows them", str(under_test.features()).replace("|", "/")
    if not bench.cuda:
        yield "driver, clock, best product", NEEDS_CUDA
        return
    matrix = torch.randn(8192, 8192, device=bench.device, dtype=torch.bfloat16)
    for _ in range(1000):  # more than a second of work, that goes on meanwhile
        torch.mm(matrix, matrix)
    uuid = under_test.features().uuid
    command = ["nvidia-smi", f"--query-gpu={','.join(ASKED)}", "--format=csv,noheader"]
    command += ["-i", "0" if uuid is None else f"GPU-{uuid}"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
        yield ", ".join(ASKED), said
    except (OSError, subprocess.SubprocessError) as error:
        yield ", ".join(ASKED), one_line(error)
    bench.synchronize()
    best = matmul_peak.measure(bench.device, ["bfloat16"])["bfloat16"]
    share = f"{best.flops_per_second / DENSE_BF16:.1%} of 989.5"
    yield "best bf16 product", f"{best.flops_per_second / 1e12:.1f} TFLOPS, {share}, {best.size} x {best.size}"


def truth(bench: Bench) -> Iterator[Row]:
    """FLOPs by hand and times between events that are recorded here, beside the callback's."""
    kinds = {
        "small layers": small,
        "large layers": lambda bench: stack(bench, *bench.pick((16, 8192, 8192), (3, 64, 64))),
        "Llama": llama,
    }
    for kind in bench.allowance.each([*kinds]):
        yield from attempted(bench, kind, partial(_truth, bench, kinds[kind]))


def _truth(bench: Bench, make: Callable[[Bench], Case]) -> Iterator[Row]:
    case = make(bench)
    noted, config, summary = stamps.stamped(bench, case, bench.pick(40, 6))
    counted = records(config, Flops)[0]
    flops = {"model": case.model_flops, "hardware": case.hardware_flops}
    for name, by_hand in flops.items():
        yield case.name, f"{name} FLOPs", f"{by_hand}", f"{getattr(counted, f'{name}_flops')}"
    lost = "—" if summary is None else summary.lost_steps
    yield case.name, "not counted; lost; clock", "", f"{dict(counted.uncounted)}; {lost}; {stamps.clock(config)}"
    yield from stamps.times(bench, noted, config)
    step = statistics.fmean(stamps.true_times(bench, noted)["step_time"][stamps.FIRST - 1 :])
    peak = PEAKS[next(case.model.parameters()).dtype] if bench.cuda else DENSE_BF16  # the latter: `Bench.config`
    for name, work in zip(("mfu", "hfu"), flops.values(), strict=True):
        share = work / step / peak
        ours = None if summary is None else getattr(summary, name)
        yield case.name, f"{name}, %", f"{share * 100:.5g}", *stamps.beside(share, ours, 100)


def same(bench: Bench) -> Iterator[Row]:
    """Losses and weights of six steps, the second of which is counted, beside those of steps that nobody counts."""
    with _deterministic():
        off, again, counted = (_trained(bench, flops) for flops in ("off", "off", "count"))
    for name, other in (("off, again (the control)", again), ("count", counted)):
        *losses, weights = [bool(torch.equal(a, b)) for a, b in zip(off[1], other[1], strict=True)]
        either = "are" if weights else "are not"
        yield f'flops="off" and {name}', f"{sum(losses)} of 6 losses and the weights {either} bitwise equal ({off[0]})"


def _trained(bench: Bench, flops: str) -> tuple[str, list[torch.Tensor]]:
    """The model's name, six losses and the weights."""
    losses: list[torch.Tensor] = []
    try:
        case = llama(bench, batch=2, length=512)
    except MissingError:
        case = transformer(bench)
    noted = SimpleNamespace(model=case.model, optimizer=case.optimizer, step=lambda one: losses.append(case.step(one)))
    train(bench, noted, [case.batch] * 6, bench.config(flops=flops))
    return case.name, [*losses, torch.cat([one.detach().flatten() for one in case.model.parameters()])]


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    """Otherwise the backward of fused attention adds in any order. The control finds what can't be deterministic."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.use_deterministic_algorithms(False)
        del os.environ["CUBLAS_WORKSPACE_CONFIG"]
