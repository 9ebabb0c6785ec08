"""Hardware counters: energy beside power times time, throttling, GPM, and what the package reads of them."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from gpu.bench import DENSE_BF16, Bench, MissingError, Row, attempted, one_line, records, train
from gpu.models import large
from gpu.nvml_truth import Nvml, Reading, Simulated, counters_of
from perf_callbacks.kernel.process import device
from perf_callbacks.kernel.process.nvml import THROTTLES, Monitor
from perf_callbacks.kernel.records.machine_records import Use

COLUMNS = ("load", "what", "truth, by pynvml", "ours", "difference")

WORDS = ("watt", "joule", "energy", "throttle", "activity", "clock", "celsius")
"""Parts of names of fields about these counters."""

PRODUCTS, IDLE, TRAINING = "products of 8,192", "idle", "a measured loop, 5 ms steps"
IDLENESS = 0x001
"""Bit of the reason "nothing runs"."""

Readings = list[tuple[float, Reading, Any]]
"""Moments, with the readings of NVML and of the package."""


@dataclasses.dataclass(frozen=True)
class Sensors:
    """Both ways to read the counters."""

    truth: Nvml | Simulated
    monitor: Monitor

    def read(self) -> tuple[Reading, Any]:
        """Read both."""
        return self.truth.read(), self.monitor.read()

    def close(self) -> None:
        """Close both."""
        self.monitor.close()
        self.truth.close()


def hardware(bench: Bench) -> Iterator[Row]:
    """All counters under three loads."""
    try:
        truth = counters_of(bench)
    except MissingError as missing:
        yield "all", f"left out: {missing}"
        return
    sensors = Sensors(truth, Monitor(device.of(bench.device).features().uuid))
    try:
        yield "", "power limit in force, of the usual", truth.limits()
        for load in bench.allowance.each((PRODUCTS, IDLE, TRAINING)):
            rows = _training if load == TRAINING else partial(_under, load=load)
            yield from attempted(bench, load, partial(rows, bench, sensors))
        for name, why in truth.refusals.items():
            yield "all", f"refused: {name}", why
        yield from _costs(bench, sensors)
    finally:
        sensors.close()


def _under(bench: Bench, sensors: Sensors, load: str) -> Iterator[Row]:
    size, calls = bench.pick(8192, 64), bench.pick(32, 4)
    matrix = torch.randn(size, size, device=bench.device).to(torch.bfloat16)
    done = 0

    def products() -> None:
        nonlocal done
        for _ in range(calls):
            torch.mm(matrix, matrix)
        done += calls

    work = products if load == PRODUCTS else lambda: time.sleep(bench.pick(0.05, 0.01))
    _observed(bench, work, sensors, bench.pick(2.0, 0.05), f"{load}, warm")  # power is a mean over a second
    bench.synchronize()
    gpm = _Gpm(sensors.truth)
    done, began = 0, time.perf_counter()
    readings = _observed(bench, work, sensors, bench.pick(8.0 if load == PRODUCTS else 4.0, 0.2), load)
    bench.synchronize()
    rate = done * 2 * size**3 / (time.perf_counter() - began)
    yield from _energy(load, readings)
    if load == PRODUCTS:
        yield load, "share of the published peak that was reached", f"{rate / DENSE_BF16:.1%}"
    yield load, "GPM", gpm.end(), _last(readings, ("tensor_activity", "bandwidth_activity"))


def _observed(bench: Bench, work: Callable[[], object], sensors: Sensors, seconds: float, name: str) -> Readings:
    """Read the counters again and again while work is queued; the device never waits for the host."""
    found: Readings = []
    end, before = time.perf_counter() + seconds, None
    for _ in bench.allowance.rounds(None, name, at_least=3):
        work()
        now = bench.stamp()
        found.append((time.perf_counter(), *sensors.read()))
        while bench.module is not None and before is not None and not before.query():
            time.sleep(0.0005)
        before = now
        if time.perf_counter() >= end and len(found) >= 3:
            break
    return found


def _energy(load: str, readings: Readings) -> Iterator[Row]:
    seconds = readings[-1][0] - readings[0][0]
    known = [
        (moment, one.watts, one.joules)
        for moment, one, _ in readings
        if one.watts is not None and one.joules is not None
    ]
    if len(known) < 2:
        yield load, "energy", "this device has no counters of energy and power"
    else:
        counted = known[-1][2] - known[0][2]
        summed = sum((a[1] + b[1]) / 2 * (b[0] - a[0]) for a, b in pairwise(known))
        yield load, f"energy in {seconds:.2f} s by its counter", f"{counted:.2f} J", *_ours_energy(readings, counted)
        apart = f"{counted / summed - 1:+.2%}" if summed else "—"
        yield load, f"power x time, {len(known)} readings", f"{summed:.2f} J", "", f"the counter's is {apart} beside it"
    watts = [one.watts for _, one, _ in readings if one.watts is not None]
    if watts:
        usual = statistics.fmean(watts)
        ours = [one.watts for *_, one in readings if one.watts is not None]
        mean = statistics.fmean(ours) if ours else None
        said = ("—", "—") if mean is None else (f"{mean:.1f} W", f"{mean / usual - 1:+.2%}")
        yield load, "mean power", f"{usual:.1f} W", *said
    reasons = [one.reasons for _, one, _ in readings if one.reasons is not None]
    bits = sorted({1 << place for one in reasons for place in range(64) if one >> place & 1})
    names = [THROTTLES.get(bit, "idle" if bit == IDLENESS else "unknown") + f" ({bit:#x})" for bit in bits]
    ours_names = sorted({name for *_, one in readings for name in one.throttled_by or ()})
    yield load, f"reasons for a lower clock, {len(reasons)} readings", ", ".join(names) or "none", ", ".join(ours_names)
    clocks = [one.sm_mhz for _, one, _ in readings if one.sm_mhz is not None]
    if clocks:
        yield load, "clock, lowest and highest", f"{min(clocks)} to {max(clocks)} MHz", _last(readings, ("sm_mhz",))


def _ours_energy(readings: Readings, truth: float) -> tuple[str, str]:
    joules = [joules for *_, one in readings if (joules := getattr(one, "joules", None)) is not None]
    if len(joules) < 2:
        return "—", "the package read no energy"
    counted = joules[-1] - joules[0]
    return f"{counted:.2f} J", f"{counted / truth - 1:+.2%}" if truth else "—"


def _last(readings: Readings, names: tuple[str, ...]) -> str:
    """The package's last reading of some fields."""
    values = {name: getattr(readings[-1][2], name, None) for name in names}
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None) or "—"


class _Gpm:
    """Activities from its making to its end."""

    def __init__(self, truth: Nvml | Simulated) -> None:
        self._truth = truth
        self._before, self._why = self._sample()

    def _sample(self) -> tuple[Any, str]:
        try:
            return self._truth.gpm_sample(), ""
        except Exception as error:  # noqa: BLE001 an old driver, a chip without, a GPU that others own
            return None, str(error) if isinstance(error, MissingError) else one_line(error)

    def end(self) -> str:
        """Return the activities as a cell."""
        after, why = (None, self._why) if self._before is None else self._sample()
        if after is None:
            return why
        try:
            shares = self._truth.gpm_shares(self._before, after)
        except Exception as error:  # noqa: BLE001 as above
            return one_line(error)
        return ", ".join(f"{name} {'—' if share is None else f'{share:.1%}'}" for name, share in shares.items())


def _training(bench: Bench, sensors: Sensors) -> Iterator[Row]:
    """A measured loop that lasts longer than the time between two `use` records."""
    case, config = large(bench), bench.config()
    readings: Readings = []
    most = bench.pick(11.5, 0.2)
    end = time.perf_counter() + most

    def batches() -> Iterator[Any]:
        for number in bench.allowance.rounds(None, TRAINING, at_least=4):
            if number % 20 == 0:
                bench.synchronize()  # else the host is minutes ahead
                readings.append((time.perf_counter(), *sensors.read()))
            if time.perf_counter() >= end and len(readings) >= 3:
                return
            yield case.batch

    summary = train(bench, case, batches(), config).summary
    yield from _energy(TRAINING, readings)
    used = records(config, Use)
    fields = _named(used[-1], WORDS) if used else "—"
    yield TRAINING, f"last of {len(used)} `use` records", "", fields
    yield TRAINING, "summary", "", "—" if summary is None else _named(summary, WORDS)


def _named(record: Any, words: tuple[str, ...]) -> str:
    """Fields of a record, and of the records in it, whose names contain one of some words."""
    found = []
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if dataclasses.is_dataclass(value):
            found.append(_named(value, words))
        elif any(word in field.name for word in words) and value is not None and value != ():
            found.append(f"{field.name} {value}")
    return ", ".join(filter(None, found))


def _costs(bench: Bench, sensors: Sensors) -> Iterator[Row]:
    """Seconds of a reading on an idle device."""
    cells = []
    for read in (sensors.truth.read, sensors.monitor.read):
        seconds = []
        for _ in bench.allowance.rounds(bench.pick(50, 3), "costs of a reading"):
            began = time.perf_counter()
            read()
            seconds.append(time.perf_counter() - began)
        cells.append(f"{min(seconds) * 1e6:.0f} us at least, {statistics.median(seconds) * 1e6:.0f} us usually")
    yield IDLE, "time of a reading", *cells
