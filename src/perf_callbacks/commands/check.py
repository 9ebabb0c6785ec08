"""`perf-callbacks check`: the checklist for this machine, and the peak for MFU, without training."""

import argparse
import json
import os
from dataclasses import asdict

from perf_callbacks.core.peaks import TERA, WHATEVER, Peaks, advice
from perf_callbacks.host import config_file
from perf_callbacks.report import cards

NAME: str = "check"
SUMMARY: str = "what the startup checklist would do on this machine, and the peak that MFU would go by"

_NAMES = {WHATEVER: "any number format"}

LEFT_TO_DO = 1
"""Exit status if something is left to do by hand."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.epilog = (
        "Settings are those of the environment (PERF_CALLBACKS_...) and of the file that PERF_CALLBACKS_CONFIG names. "
        "Nothing is changed; a peak that is "
        "measured is kept in the user's cache. Exits with 1 if something is left to do by hand: an item is advised or "
        "failed, or the device has no known peak; with 2 if a setting makes no sense."
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the table."""
    from perf_callbacks.host import device, peak_source  # noqa: PLC0415 as below
    from perf_callbacks.session import startup  # noqa: PLC0415 other commands do without torch

    settings = config_file.in_force(None, os.environ)
    values = asdict(settings.config)
    here = device.default()
    name, rows = device.name(here), startup.foresee(settings, here)
    off = "PERF_CALLBACKS=0" if not settings.config.enabled else "flops=off" if settings.config.flops == "off" else None
    dtypes = ("float32",) if here.type == "cpu" else ("bfloat16", "float32")
    peak = None if off else peak_source.find(here, dtypes, settings.config)
    if arguments.json:
        origins = {name: {"value": values[name], "origin": origin} for name, origin in settings.origins.items()}
        items = [asdict(row) for row in rows]
        print(json.dumps({"device": name, "items": items, "peak": _peak(peak), "settings": origins}, indent=2))
    else:
        if settings.origins:
            print(cards.from_outside(values, settings.origins))
        print("\n".join([cards.check(name, rows, _said(peak, off or advice(name))), *settings.remarks]))
    missing = peak is None and not off
    return LEFT_TO_DO if missing or any(row.status in startup.LEFT_TO_DO for row in rows) else 0


def _peak(peak: Peaks | None) -> dict[str, object] | None:
    if peak is None:
        return None
    tflops = {dtype: flops_per_second / TERA for dtype, flops_per_second in peak.by_dtype.items()}
    return {"tflops": tflops, "measured": peak.measured, "source": peak.source}


def _said(peak: Peaks | None, without: str) -> str:
    if peak is None:
        return f"There would be no MFU: {without}"
    if peak.measured:
        return f"MFU would be of a peak {peak.source}"
    rates = ", ".join(f"{flops / TERA:g} in {_NAMES.get(dtype, dtype)}" for dtype, flops in peak.by_dtype.items())
    return f"MFU would be of a peak in TFLOPS: {rates} ({peak.source})"
