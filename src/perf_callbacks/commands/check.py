"""`perf-callbacks check`: show this machine's checklist, advice, CPUs and peak for MFU, without training."""

import argparse
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from perf_callbacks.commands import status
from perf_callbacks.commands.outcomes import ExitStatus
from perf_callbacks.flops.peaks.peak_rates import WHATEVER, Peaks, advice
from perf_callbacks.kernel.plural import plural
from perf_callbacks.kernel.process import nvml, terminal
from perf_callbacks.kernel.process.cpu_sets import choose, ranges
from perf_callbacks.kernel.records.fit_records import Checklist
from perf_callbacks.kernel.settings import config_file
from perf_callbacks.kernel.units import TERA
from perf_callbacks.report import opening_card
from perf_callbacks.report.layout import aligned, wrapped
from perf_callbacks.report.units import DASH, speed

if TYPE_CHECKING:
    import torch

    from perf_callbacks.kernel.fit.environment import Environment

SUMMARY: str = "show what the startup checklist would do on this machine, advice, and the peak for MFU"

_NAMES = {WHATEVER: "any number format"}

ITEM = "affinity"

_COLUMNS = {
    "rank": "rank",
    "gpu": "GPU",
    "numa_nodes": "NUMA",
    "cpus": "CPUs",
    "cpus_in_training": "in a training",
    "threads": "threads",
    "status": "affinity",
}
PATIENCE_SECONDS = 20.0
"""For the store in which the ranks of a machine meet, and then for the note of each rank."""

LATER = (
    "A training would measure the peak for MFU; `perf-callbacks check --measure` measures it now, and keeps the device "
    "busy for some seconds"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Settings come from the environment (PERF_CALLBACKS_...) and from the file that PERF_CALLBACKS_CONFIG names. "
        "The command changes nothing but the user's cache of measured peaks. "
        "Under torchrun the first rank of a machine prints for all of its ranks. "
        "Exits with 1 if something is left to do by hand: an item is advised or "
        "failed, there is advice, or the device has no known peak or can't be used; with 2 if a setting makes no sense."
    )
    parser.add_argument(
        "--measure",
        action="store_true",
        help="on an accelerator, measure the peak now if a training would; this keeps the device busy for seconds",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    from perf_callbacks import checklist  # noqa: PLC0415 other commands do without torch
    from perf_callbacks.advice import observer as advising  # noqa: PLC0415 as above
    from perf_callbacks.flops.peaks import peak_source  # noqa: PLC0415 as above
    from perf_callbacks.kernel.process import cpu_facts, device  # noqa: PLC0415 as above

    settings = config_file.in_force(None, os.environ)
    values = settings.shown
    local = cpu_facts.local_ranks(os.environ) or (0, 1)
    here = device.default(local[0])
    rows, environment = checklist.foresee(settings, here)
    bindings = _gathered(_binding(rows, environment, settings.config.affinity), local)
    if bindings is None:  # the first rank of this machine prints
        return 0
    config = settings.config
    off = "PERF_CALLBACKS=0" if not config.enabled else "flops=off" if config.flops == "off" else None
    dtypes = ("float32",) if here.type == "cpu" else ("bfloat16", "float32")
    may_measure = arguments.measure or here.type == "cpu"
    reason = device.device_at(here).refuses()  # a driver may list GPUs that CUDA can't use
    name, findings = device.device_at(here).name, advising.without_run(here)
    refused = f"{here.type} can't be used" if reason else None
    asked = config if may_measure else replace(config, measure_peak="off")
    peak = None if off or refused else peak_source.find(here, dtypes, asked)
    later = not (off or refused or may_measure or config.peak_tflops) and (
        config.measure_peak == "on" or (peak is None and config.measure_peak == "auto")
    )
    notes = [*_device_notes(here, reason)]
    if arguments.json:
        origins = {name: {"value": values[name], "origin": origin} for name, origin in settings.origins.items()}
        found = {
            "device": name,
            "items": [*map(asdict, rows)],
            "findings": [*map(asdict, findings)],
            "peak": _peak(peak),
            "settings": origins,
            "ranks": bindings,
            "device_notes": notes,
        }
        print(json.dumps(found, indent=2))
    else:
        if settings.origins:
            print("\n".join(["Settings from outside:", *status.settings_lines(settings)]))
        said = LATER if later else _said(peak, off or refused or peak_source.crowded(here) or advice(name))
        card = opening_card.check(name, rows, said, findings, terminal.columns())
        without = status.no_effect()
        remarks = [*settings.remarks, *([] if without is None else [f"{without} `perf-callbacks status` says why."])]
        lines = [line for note in notes for line in wrapped(note, indent="  ", width=terminal.columns())]
        print("\n".join([card, *lines, *remarks, bindings_table(bindings)]))
    statuses = {row.status for row in rows} | {rank["status"] for rank in bindings}
    unknown = peak is None and not off and not later
    return ExitStatus.LEFT_TO_DO if unknown or findings or statuses & checklist.LEFT_TO_DO else 0


def _device_notes(here: "torch.device", refused: str | None) -> Iterator[str]:
    from perf_callbacks.kernel.process import device  # noqa: PLC0415 other commands do without torch

    if not device.may_be_nvidia(here):
        return
    found, built = nvml.inventory(), device.cuda_version()
    gpus, lost = len(found.gpus), len(found.unanswered)
    lists = f"NVML lists {plural(gpus, 'GPU')}" if gpus else "NVML lists no GPU"
    lists += f": {found.missing}" if found.missing is not None else ""
    if refused:
        yield f"{here.type} can't be used ({refused}). {lists}."
    elif here.type == "cpu" and built is not None:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        only = "" if hidden is None else f" (CUDA_VISIBLE_DEVICES={hidden!r})"
        yield f"torch is built for CUDA {built} and finds no GPU{only}. {lists}."
    elif here.type == "cpu" and gpus:
        yield f"this torch is built without CUDA. {lists}."
    if lost:
        yield f"NVML gets no answer from {lost} of {plural(gpus + lost, 'GPU')}: {'; '.join(found.unanswered)}."
    divided = sum([gpu.divided for gpu in found.gpus])
    if divided and here.type != "cpu":
        yield f"MIG divides {divided} of {plural(gpus, 'GPU')}; NVML gives few counters of an instance."


def _binding(rows: Sequence[Checklist], environment: "Environment", mode: str) -> dict[str, Any]:
    """GPU and CPUs of this rank, for `bindings_table` and JSON."""
    from perf_callbacks.kernel.fit.item import FORESEEN  # noqa: PLC0415 other commands do without this module
    from perf_callbacks.kernel.process.cpu_masks import AFFINITY  # noqa: PLC0415

    facts, rank = environment.cpu_facts, os.environ.get("RANK", "")
    status = next((row.status for row in rows if row.item == ITEM), "off")
    cpus = chosen = nodes = gpu = None
    if facts is not None:
        cpus = chosen = facts.mask
        if status == FORESEEN:
            chosen = choose(mode, facts).cpus or cpus
        gpu = facts.gpu
        nodes = [node for node, those in facts.machine.nodes.items() if those & chosen]
        if gpu is not None:
            nodes = [] if gpu.node is None else [gpu.node]
    return {
        "rank": int(rank) if rank.isdecimal() else 0,
        "gpu": None if gpu is None else gpu.pci,
        # the node of the GPU, or the nodes of the CPUs if there is no GPU
        "numa_nodes": ranges(nodes) if nodes else None,
        "cpus": None if cpus is None else ranges(cpus),
        "cpus_in_training": None if chosen is None else ranges(chosen),
        # threads whose mask is `cpus`; all other threads have other masks
        "threads": None if cpus is None else sum([mask == cpus for _, mask in AFFINITY.now]),
        "status": status,
    }


def bindings_table(ranks: Sequence[Mapping[str, object]]) -> str:
    """A field that is missing or None shows as a dash.

    >>> print(bindings_table([{"rank": 0, "cpus": "0-7", "cpus_in_training": "0-3", "status": "to be applied"}]))
    rank  GPU  NUMA  CPUs  in a training  threads  affinity
       0  —    —     0-7   0-3            —        to be applied
    """
    rows = [[DASH if rank.get(field) is None else str(rank[field]) for field in _COLUMNS] for rank in ranks]
    return "\n".join(aligned([[*_COLUMNS.values()], *rows], right={0}))


def _gathered(mine: dict[str, Any], local: tuple[int, int]) -> list[dict[str, Any]] | None:
    """None on ranks other than the machine's first."""
    try:
        notes = _hand_in(json.dumps(mine), local)
    except Exception:  # noqa: BLE001 ranks that can't exchange notes print for themselves
        return [mine]
    if notes is None:
        return None
    silent = {"status": "no answer"}
    return [json.loads(note) if note else {"rank": mine["rank"] + place} | silent for place, note in enumerate(notes)]


def _hand_in(note: str, local: tuple[int, int]) -> list[str | None] | None:
    """Send a note to the first rank of this machine, which gets all of them; None: a note didn't come in time.

    The ranks meet in the store that the launcher's environment variables point to. Raise an exception if they can't
    reach it.
    """
    import torch.distributed as dist  # noqa: PLC0415 other commands do without torch

    place, number = local
    if number == 1:
        return [note]
    c10d: Any = dist  # torch documents this module's names without exporting them
    patience = timedelta(seconds=PATIENCE_SECONDS)
    store, rank, _ = next(c10d.rendezvous("env://", timeout=patience))
    prefix = f"perf_callbacks check {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    store.set(f"{prefix} {rank}", note)
    if place:
        return None
    store.set_timeout(patience)
    # launchers number the ranks of a machine one after the other
    return [_note(store, f"{prefix} {other}") for other in range(rank, rank + number)]


def _note(store: Any, key: str) -> str | None:
    try:
        return bytes(store.get(key)).decode()
    except RuntimeError:  # the note didn't come in time
        return None


def _peak(peak: Peaks | None) -> dict[str, object] | None:
    if peak is None:
        return None
    tflops = {dtype: flops_per_second / TERA for dtype, flops_per_second in peak.by_dtype.items()}
    return {"tflops": tflops, "measured": peak.measured, "source": peak.source}


def _said(peak: Peaks | None, without: str) -> str:
    if peak is None:
        return f"There would be no MFU: {without}"
    figures = None if peak.measured else 6
    source = peak.source.rpartition(": ")[0] if peak.measured else peak.source  # without the rates
    rates = [f"{speed(flops, figures)} in {_NAMES.get(dtype, dtype)}" for dtype, flops in peak.by_dtype.items()]
    return f"MFU would use a peak of {', '.join(rates)} ({source})"
