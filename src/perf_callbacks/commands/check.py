"""`perf-callbacks check`: the checklist for this machine, advice, and the peak for MFU, without training."""

import argparse
import json
import os
from dataclasses import asdict

from perf_callbacks.core.peaks import TERA, WHATEVER, Peaks, advice
from perf_callbacks.core.settings import resolve
from perf_callbacks.report import cards

NAME: str = "check"
SUMMARY: str = "what the startup checklist would do on this machine, advice, and the peak that MFU would go by"

_NAMES = {WHATEVER: "any number format"}

LEFT_TO_DO = 1
"""Exit status if something is left to do by hand."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.epilog = (
        "Settings are those of the environment (PERF_CALLBACKS_...). Nothing is changed; a peak that is "
        "measured is kept in the user's cache. Exits with 1 if something is left to do by hand: an item is advised or "
        "failed, there is advice, or the device has no known peak; with 2 if a setting makes no sense."
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the table."""
    from perf_callbacks.host import device, peak_source  # noqa: PLC0415 as below
    from perf_callbacks.session import advising, startup  # noqa: PLC0415 other commands do without torch

    settings = resolve(None, os.environ)
    here = device.default()
    name, rows = device.name(here), startup.foresee(settings, here)
    findings = advising.without_run(None if here.type == "cpu" else here.type)
    off = "PERF_CALLBACKS=0" if not settings.config.enabled else "flops=off" if settings.config.flops == "off" else None
    dtypes = ("float32",) if here.type == "cpu" else ("bfloat16", "float32")
    peak = None if off else peak_source.find(here, dtypes, settings.config)
    if arguments.json:
        lists = {"items": [asdict(row) for row in rows], "findings": [asdict(found) for found in findings]}
        print(json.dumps({"device": name, **lists, "peak": _peak(peak)}, indent=2))
    else:
        card = cards.check(name, rows, _said(peak, off or advice(name)), findings)
        print("\n".join([card, *settings.remarks]))
    missing = peak is None and not off
    return LEFT_TO_DO if missing or findings or any(row.status in startup.LEFT_TO_DO for row in rows) else 0


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
