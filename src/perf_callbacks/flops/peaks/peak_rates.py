"""Peak FLOP/s of a device by its name, and the settings that give them."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from perf_callbacks.flops.peaks.device_peaks import DEVICES, Chip
from perf_callbacks.kernel.settings.config import ConfigError
from perf_callbacks.kernel.units import TERA

DTYPES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "tf32": "tfloat32",
    "fp32": "float32",
    "fp64": "float64",
    "fp8": "float8",
    "fp4": "float4",
}
"""Short names. "tfloat32", "float8" and "float4" are our own, the others torch's."""

WHATEVER = "*"  # for a peak of all dtypes


@dataclass(frozen=True, slots=True)
class Peaks:
    """Dense peak FLOP/s of a device, and the source of the figures."""

    by_dtype: Mapping[str, float]  # by torch's name; a missing dtype's peak is unknown
    source: str
    measured: bool = False  # by matmuls on the device: lower than published peaks

    def peak_flops_per_second(self, dtype: str) -> float | None:
        """`dtype` may be a short name.

        >>> Peaks({"bfloat16": 312e12}, "A100 page").peak_flops_per_second("bf16")
        312000000000000.0
        """
        return self.by_dtype.get(canonical(dtype), self.by_dtype.get(WHATEVER))


def canonical(dtype: str) -> str:
    """Return the full name of a dtype, as the table of peaks spells it.

    >>> canonical("bf16"), canonical("torch.float8_e4m3fn")
    ('bfloat16', 'float8')
    """
    name = dtype.strip().lower().removeprefix("torch.")
    return name[:6] if name.startswith(("float8", "float4")) else DTYPES.get(name, name)


def lookup(device: str, processors: int | None = None, architecture: str | None = None) -> Peaks | None:
    """Return the published dense peaks of a device, if the whole name matches: a laptop GPU is another device.

    `processors` tell a partition from the whole device; ROCm's `architecture` identifies an AMD Instinct without a
    name.

    >>> lookup("NVIDIA H100 80GB HBM3").peak_flops_per_second("bfloat16") / 1e12
    989.5
    >>> lookup("NVIDIA GeForce RTX 4090 Laptop GPU")
    >>> lookup("AMD Radeon Graphics", 228, "gfx942:sramecc+:xnack-").source.rpartition("/")[2]
    'mi300a.html'
    """
    rows = _rows(device, processors, architecture)
    if not rows or any(row.tflops != rows[0].tflops for row in rows):  # the name is ambiguous
        return None
    return Peaks({dtype: tflops * TERA for dtype, tflops in rows[0].tflops.items()}, rows[0].source)


NAMELESS = "radeon graphics"
"""ROCm reports this for every AMD GPU if its list of device names is missing, as in small containers."""


def _rows(device: str, processors: int | None, architecture: str | None) -> list[Chip]:
    name = bare_name(device)
    if name == NAMELESS and architecture is not None:
        built = architecture.partition(":")[0], processors
        return [row for row in DEVICES if (row.arch, row.processors) == built]
    rows = [row for row in DEVICES if re.fullmatch(row.name, name)]
    return [row for row in rows if processors is None or row.processors in {None, processors}]


_BRANDS = frozenset({"nvidia", "amd", "intel", "r", "google", "instinct", "tesla", "geforce"})


def bare_name(device: str) -> str:
    """Return the name as the rows of the table match it: lower-case words without brands."""
    return " ".join(word for word in re.findall(r"[a-z0-9.]+", device.lower()) if word not in _BRANDS)


def near(device: str) -> list[str]:
    """Return at most three devices with similar names; none for a partition. "H100" never suggests a P100.

    >>> near("H100")
    ['NVIDIA H100 80GB HBM3', 'NVIDIA H100 NVL', 'NVIDIA H100 PCIe']
    """
    devices = {bare_name(row.called): row.called for row in DEVICES}
    wanted = bare_name(device)
    words = {*wanted.split()}
    if not words or "mig" in words:
        return []
    alike = [called for name, called in devices.items() if words <= {*name.split()}]
    if not alike:
        model = _model(wanted)
        together = {name.replace(" ", ""): called for name, called in devices.items() if _model(name) == model}
        alike = [together[name] for name in difflib.get_close_matches("".join(wanted.split()), together, n=1)]
    return sorted(alike)[:3]


def _model(name: str) -> str | None:
    """Return the model in a device name, such as "b200" in "b 200"."""
    match = re.search(r"(\b[a-z]+ ?)?\d[a-z0-9]*", name)
    return None if match is None else match[0].replace(" ", "")


def unknown(device: str) -> str:
    """Say that the peak of a device is unknown, with devices of similar names.

    >>> unknown("NVIDIA L40S PCIe")
    "No dense peak is known for 'NVIDIA L40S PCIe' (did you mean NVIDIA L40S?)"
    """
    names = near(device)
    meant = f" (did you mean {' or '.join(filter(None, (', '.join(names[:-1]), names[-1])))}?)" if names else ""
    return f"No dense peak is known for {device!r}{meant}"


def advice(device: str) -> str:
    """Explain how to set the peak of a device that is not in the table.

    >>> print(advice("Imaginary 9000"))
    No dense peak is known for 'Imaginary 9000': set peak_tflops to the dense TFLOPS of its data sheet, such as \
"989.5" or "bf16=989.5,fp32=67", or have it measured by measure_peak="on".
    """
    return (
        f"{unknown(device)}: set peak_tflops to the dense TFLOPS of its data sheet, "
        'such as "989.5" or "bf16=989.5,fp32=67", or have it measured by measure_peak="on".'
    )


def given(text: str) -> Peaks:
    """Parse the setting `peak_tflops`: one peak for all dtypes, or one per dtype.

    >>> given("bf16=989.5,fp32=67").by_dtype
    {'bfloat16': 989500000000000.0, 'float32': 67000000000000.0}
    >>> given("bf17=989.5")
    Traceback (most recent call last):
        ...
    perf_callbacks.kernel.settings.config.ConfigError: peak_tflops: got 'bf17', wanted one of bf16, fp16, half, tf32, \
fp32, fp64, fp8, fp4; did you mean bf16?
    """
    by_dtype: dict[str, float] = {}
    for part in text.split(","):
        dtype, _, number = part.rpartition("=")
        by_dtype[number_format(dtype, "peak_tflops") if dtype else WHATEVER] = _positive(number) * TERA
    return Peaks(by_dtype, f"peak_tflops={text}")


def number_format(word: str, field: str) -> str:
    """Return the full name of a dtype, or raise `ConfigError` for `field`.

    >>> number_format("tf32", "dtype")
    'tfloat32'
    """
    dtype = canonical(word)
    if dtype not in DTYPES.values():
        nearest = difflib.get_close_matches(word, DTYPES, n=1)
        question = f"; did you mean {nearest[0]}?" if nearest else "."
        raise ConfigError(f"{field}: got {word!r}, wanted one of {', '.join(DTYPES)}{question}")
    return dtype


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number * TERA < float("inf"):
        raise ConfigError(f"peak_tflops: got {text!r}, wanted TFLOPS above 0 such as 989.5.")
    return number


def ideal_seconds(flops_by_dtype: Mapping[str, float], peaks: Peaks) -> float | None:
    """Return the seconds at the peak of each dtype, or None if one is unknown.

    >>> ideal_seconds({"bfloat16": 8e12, "float32": 1e12}, Peaks({"bfloat16": 4e12, "float32": 1e12}, "example"))
    3.0
    """
    seconds = 0.0
    for dtype, flops in flops_by_dtype.items():
        peak = peaks.peak_flops_per_second(dtype)
        if flops > 0 and peak is None:
            return None
        seconds += flops / peak if peak else 0.0
    return seconds
