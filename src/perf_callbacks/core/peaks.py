"""What a device could do at best, and what share of it was done."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from perf_callbacks.core.config import ConfigError
from perf_callbacks.core.device_peaks import DEVICES, Row

TERA = 1e12

DISTURBED = "while others had the CPU"
"""Said in the source of a peak that was measured on a busy machine."""

DTYPES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "tf32": "tfloat32",
    "fp32": "float32",
    "fp64": "float64",
    "fp8": "float8",
}
"""The short names of dtypes, and how torch names them; "tfloat32" and "float8" are ours."""

WHATEVER = "*"
"""The dtype of a peak that holds for each."""


@dataclass(frozen=True, slots=True)
class Peaks:
    """Dense peaks of a device, and who says so."""

    by_dtype: Mapping[str, float]
    """FLOP/s by dtype, as torch names it. One that is not there is unknown."""
    source: str
    measured: bool = False
    """Found by multiplying matrices on the device, not published: less than what the device could do at best."""

    def peak_flops_per_second(self, dtype: str) -> float | None:
        """The peak of a dtype, by its short name or torch's; None if it is unknown.

        >>> Peaks({"bfloat16": 312e12}, "A100 page").peak_flops_per_second("bf16")
        312000000000000.0
        """
        return self.by_dtype.get(canonical(dtype), self.by_dtype.get(WHATEVER))


def canonical(dtype: str) -> str:
    """A dtype as the tables name it.

    >>> canonical("bf16"), canonical("torch.float8_e4m3fn")
    ('bfloat16', 'float8')
    """
    name = dtype.strip().lower().removeprefix("torch.")
    return "float8" if name.startswith("float8") else DTYPES.get(name, name)


def lookup(device: str, processors: int | None = None) -> Peaks | None:
    """The published dense peaks of a device that goes by this name. None if it is not known: there is no guess.

    The whole name has to be known: what is not in the table, such as a laptop's part of the same number, is another
    device. With `processors`, the device's number of multiprocessors, a partition is not taken for the whole.

    >>> lookup("NVIDIA H100 80GB HBM3").peak_flops_per_second("bfloat16") / 1e12
    989.5
    >>> lookup("NVIDIA GeForce RTX 4090 Laptop GPU")
    """
    rows = _rows(device, processors)
    if len(rows) != 1:  # two: by name alone it could be either
        return None
    return Peaks({dtype: tflops * TERA for dtype, tflops in rows[0].tflops.items()}, rows[0].source)


def _rows(device: str, processors: int | None) -> list[Row]:
    name = _name(device)
    rows = [row for row in DEVICES if re.fullmatch(row.name, name)]
    return [row for row in rows if processors is None or row.processors in {None, processors}]


_BRANDS = frozenset({"nvidia", "amd", "intel", "google", "instinct", "tesla", "geforce", "hl"})


def _name(device: str) -> str:
    return " ".join(word for word in re.findall(r"[a-z0-9.]+", device.lower()) if word not in _BRANDS)


def near(device: str) -> list[str]:
    """Names of known devices that are like this one, at most three. A part of a device is like no other.

    >>> near("H100")
    ['NVIDIA H100 80GB HBM3', 'NVIDIA H100 NVL', 'NVIDIA H100 PCIe']
    """
    known = {_name(row.called): row.called for row in DEVICES}
    words = {*_name(device).split()}
    if not words or "mig" in words:
        return []
    alike = [called for name, called in known.items() if words <= {*name.split()}]
    if not alike:
        together = {name.replace(" ", ""): called for name, called in known.items()}
        alike = [together[name] for name in difflib.get_close_matches("".join(_name(device).split()), together, n=1)]
    return sorted(alike)[:3]


def unknown(device: str) -> str:
    """Say that no peak of a device is known, with the names that may have been meant.

    >>> unknown("NVIDIA L40S PCIe")
    "No dense peak is known for 'NVIDIA L40S PCIe' (did you mean NVIDIA L40S?)"
    """
    names = near(device)
    meant = f" (did you mean {' or '.join(filter(None, (', '.join(names[:-1]), names[-1])))}?)" if names else ""
    return f"No dense peak is known for {device!r}{meant}"


def advice(device: str) -> str:
    """Say what to do about a device whose peak is not known.

    >>> print(advice("Imaginary 9000"))
    No dense peak is known for 'Imaginary 9000': set peak_tflops to the dense TFLOPS of its data sheet, such as \
"989.5" or "bf16=989.5,fp32=67", or have it measured by measure_peak="on".
    """
    return (
        f"{unknown(device)}: set peak_tflops to the dense TFLOPS of its data sheet, "
        'such as "989.5" or "bf16=989.5,fp32=67", or have it measured by measure_peak="on".'
    )


def given(text: str) -> Peaks:
    """The peaks that somebody gives in TFLOPS: one for whatever dtype, or by dtype.

    >>> given("bf16=989.5,fp32=67").by_dtype
    {'bfloat16': 989500000000000.0, 'float32': 67000000000000.0}
    >>> given("bf17=989.5")
    Traceback (most recent call last):
        ...
    perf_callbacks.core.config.ConfigError: peak_tflops: got 'bf17', wanted one of bf16, fp16, half, tf32, fp32, fp64, \
fp8; did you mean bf16?
    """
    by_dtype: dict[str, float] = {}
    for part in text.split(","):
        dtype, _, number = part.rpartition("=")
        by_dtype[_dtype(dtype) if dtype else WHATEVER] = _positive(number) * TERA
    return Peaks(by_dtype, f"peak_tflops={text}")


def _dtype(word: str) -> str:
    dtype = canonical(word)
    if dtype not in DTYPES.values():
        nearest = difflib.get_close_matches(word, DTYPES, n=1)
        question = f"; did you mean {nearest[0]}?" if nearest else "."
        raise ConfigError(f"peak_tflops: got {word!r}, wanted one of {', '.join(DTYPES)}{question}")
    return dtype


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise ConfigError(f"peak_tflops: got {text!r}, wanted TFLOPS above 0 such as 989.5.")
    return number


def mfu(flops: float, seconds: float, peak_flops_per_second: float | None) -> float | None:
    """The share of a device's peak that went into these FLOPs of this device: MFU of model FLOPs, HFU of all.

    >>> mfu(494.75e12, 1.0, 989.5e12)
    0.5
    """
    if peak_flops_per_second is None or peak_flops_per_second <= 0 or seconds <= 0:
        return None
    return flops / seconds / peak_flops_per_second


def ideal_seconds(flops_by_dtype: Mapping[str, float], peaks: Peaks) -> float | None:
    """How long this work takes at peak, each dtype at its own. None if some of it is in a dtype without a peak.

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
