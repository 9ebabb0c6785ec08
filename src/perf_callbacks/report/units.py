"""Functions that format numbers with three figures and a unit that is easy to read."""

import math
from collections.abc import Mapping

from perf_callbacks.kernel.foreign_errors import let_pass

DASH = "—"


def rate(value: float) -> str:
    """Format a rate with at least three figures. An infinite rate becomes a dash.

    >>> rate(13760.4), rate(3.14159), rate(math.inf)
    ('13,760', '3.14', '—')
    """
    if not math.isfinite(value):
        return DASH
    before_point = math.floor(math.log10(value)) + 1 if value > 0 else 1
    return f"{value:,.{max(0, 3 - before_point)}f}"


def size(gb: float) -> str:
    """Format an amount of memory with three figures.

    >>> size(12.345), size(0.00629), size(4e-9)
    ('12.3 GB', '6.29 MB', '4 B')
    """
    return _in_unit(gb, {"GB": 1.0, "MB": 1e-3, "kB": 1e-6}) or f"{gb * 1e9:.0f} B"


def duration(seconds: float | None) -> str:
    """Format a duration with three figures.

    >>> duration(0.01234), duration(75.3), duration(None)
    ('12.3 ms', '75.3 s', '—')
    """
    if seconds is None:
        return DASH
    if seconds == 0:
        return "0"
    return _in_unit(seconds, {"s": 1.0, "ms": 1e-3}) or f"{seconds * 1e6:.0f} us"


def energy(joules: float) -> str:
    """Format an amount of energy with three figures.

    >>> energy(12345.0), energy(0.0512)
    ('12.3 kJ', '51.2 mJ')
    """
    return _in_unit(joules, {"MJ": 1e6, "kJ": 1e3, "J": 1.0, "mJ": 1e-3}) or f"{joules * 1e6:.0f} uJ"


def long_duration(seconds: float | None) -> str:
    """Format a duration that may be many hours or days.

    >>> long_duration(75.25), long_duration(7500.0), long_duration(360_000.0)
    ('75.2 s', '2 h 5 min', '4 days 4 h')
    """
    if seconds is None or seconds < 600:  # noqa: PLR2004 ten minutes
        return duration(seconds)
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if minutes < 60:  # noqa: PLR2004
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if hours < 72 else f"{hours // 24} days {hours % 24} h"  # noqa: PLR2004


def count(flops: float) -> str:
    """Format a number of FLOPs.

    >>> count(4328521728), count(12)
    ('4.33 G', '12')
    """
    units = {"E": 1e18, "P": 1e15, "T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3}
    return _in_unit(flops, units) or f"{flops:.0f}"


def speed(flops_per_second: float, figures: int | None = None) -> str:
    """Format FLOPs per second with three figures, or with at most `figures` figures and no trailing zeros.

    >>> speed(989.5e12), speed(1.13e9), speed(0.4), speed(989.5e12, 6)
    ('990 TFLOPS', '1.13 GFLOPS', '0.400 FLOPS', '989.5 TFLOPS')
    """
    units = {"TFLOPS": 1e12, "GFLOPS": 1e9, "MFLOPS": 1e6, "kFLOPS": 1e3}
    return _in_unit(flops_per_second, units, figures) or f"{rate(flops_per_second)} FLOPS"


def _in_unit(value: float, units: Mapping[str, float], figures: int | None = None) -> str | None:
    for unit, size in units.items():
        if abs(value) >= size:
            return f"{rate(value / size) if figures is None else format(value / size, f'.{figures}g')} {unit}"
    return None


def percent(share: float | None) -> str:
    """Format a share in percent, with one digit after the point. Below 0.1 %, use two significant digits.

    >>> percent(0.4567), percent(0.00034), percent(0.0), percent(None)
    ('45.7%', '0.034%', '0.0%', '—')
    """
    if share is None:
        return DASH
    if not 0 < share < LEAST_TENTH:
        return f"{share:.1%}"
    places = 1 - math.floor(math.log10(100 * share))
    return f"{100 * share:.{places}f}%"


LEAST_TENTH = 0.0009995


def when(unix: float) -> str:
    from datetime import datetime, timezone  # noqa: PLC0415 only a report needs this module

    try:
        return datetime.fromtimestamp(unix, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, OSError, ValueError) as error:
        let_pass(error)
        return DASH
