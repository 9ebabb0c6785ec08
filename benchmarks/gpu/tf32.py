"""The switch for TF32: does the package call a product "tfloat32" only where the device is faster with it."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from gpu.bench import Bench, Row, one_line
from perf_callbacks.flops.counting.operands import number_format
from perf_callbacks.flops.work import Kind
from perf_callbacks.kernel.process import device

COLUMNS = ("operation", "switch", "TFLOPS", "faster than without", "the package says", "right")

FASTER = 1.5
"""From this gain on, the device multiplies in another format."""

TF32, IEEE = "tf32", "ieee"


def tf32(bench: Bench) -> Iterator[Row]:
    """Float32 products and convolutions with the switch off and on, by each interface that this torch has."""
    yield "features of the device", str(device.of(bench.device).features().tf32), "", "", "", ""
    kinds = [
        (_product(bench), _matmul_switches()),
        (_convolution(bench), _convolution_switches()),
    ]
    cases = [(operation, *switch) for operation, switches in kinds for switch in switches]
    for operation, said, switch in bench.allowance.each(cases, lambda case: f"{case[0].name}, {case[1]}"):
        try:
            yield from _compared(bench, operation, said, switch)
        except Exception as error:  # noqa: BLE001 this torch refuses one interface beside the other
            yield operation.name, said, one_line(error)


Switch = Callable[[bool], object]


class Operation(NamedTuple):
    """An operation on float32 numbers."""

    name: str
    kind: Kind
    flops: float
    call: Callable[[], torch.Tensor]


def _compared(bench: Bench, operation: Operation, said: str, switch: Switch) -> Iterator[Row]:
    operand = [torch.ones(2, 2, device=bench.device)]
    seconds = dict[bool, float]()
    with _kept():
        for on in (False, True):
            switch(on)
            seconds[on] = _shortest(bench, f"{operation.name}, {said}", operation.call)
            ours = number_format(operand, operation.kind)
            gain = seconds[False] / seconds[on]
            right = (ours == "tfloat32") == (on and gain > FASTER)
            more = f"{gain:.2f} x" if on else ""
            rate = f"{operation.flops / seconds[on] / 1e12:.4g}"
            yield operation.name, f"{said}: {'on' if on else 'off'}", rate, more, ours, "yes" if right else "NO"


def _matmul_switches() -> Iterator[tuple[str, Switch]]:
    yield "set_float32_matmul_precision", lambda on: torch.set_float32_matmul_precision("high" if on else "highest")
    yield "matmul.allow_tf32", lambda on: setattr(torch.backends.cuda.matmul, "allow_tf32", on)
    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):  # since torch 2.9
        yield (
            "matmul.fp32_precision",
            lambda on: setattr(torch.backends.cuda.matmul, "fp32_precision", TF32 if on else IEEE),
        )
        yield (
            "torch.backends.fp32_precision",
            lambda on: setattr(torch.backends, "fp32_precision", TF32 if on else IEEE),
        )


def _convolution_switches() -> Iterator[tuple[str, Switch]]:
    yield "cudnn.allow_tf32", lambda on: setattr(torch.backends.cudnn, "allow_tf32", on)
    newer = getattr(torch.backends.cudnn, "conv", None)
    if newer is not None:  # since torch 2.9
        yield "cudnn.conv.fp32_precision", lambda on: setattr(newer, "fp32_precision", TF32 if on else IEEE)


@contextlib.contextmanager
def _kept() -> Iterator[None]:
    """Restore the switches by the interface that this torch prefers: the other may refuse to be read."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    places = [
        (torch.backends, "fp32_precision"),
        (matmul, "fp32_precision"),
        (getattr(cudnn, "conv", cudnn), "fp32_precision"),
    ]
    if not hasattr(matmul, "fp32_precision"):  # before torch 2.9
        places = [(matmul, "allow_tf32"), (cudnn, "allow_tf32")]
    before = [getattr(place, name) for place, name in places]
    try:
        yield
    finally:
        for (place, name), value in zip(places, before, strict=True):
            setattr(place, name, value)


def _product(bench: Bench) -> Operation:
    size = bench.pick(8192, 64)
    matrix = torch.randn(size, size, device=bench.device)
    return Operation("product", "matmul", 2 * size**3, lambda: matrix @ matrix)


def _convolution(bench: Bench) -> Operation:
    batch, channels, size = bench.pick((32, 512, 64), (2, 8, 8))
    images = torch.randn(batch, channels, size, size, device=bench.device)
    kernels = torch.randn(channels, channels, 3, 3, device=bench.device)
    flops = 2 * batch * channels * channels * size * size * 9
    return Operation(
        "convolution", "convolution", flops, lambda: torch.nn.functional.conv2d(images, kernels, padding=1)
    )


def _shortest(bench: Bench, name: str, call: Callable[[], torch.Tensor]) -> float:
    """The shortest of some rounds, each waited for."""
    for _ in range(3):
        call()
    seconds: list[float] = []
    for _ in bench.allowance.rounds(bench.pick(10, 2), name):
        bench.synchronize()
        began = time.perf_counter()
        for _ in range(4):
            call()
        bench.synchronize()
        seconds.append((time.perf_counter() - began) / 4)
    return min(seconds)
