"""The search for a peak, on a clock of its own; and once on this machine."""

import os
import random

import pytest
import torch
from rows import each_row

from perf_callbacks.flops.peaks import matmul_peak
from perf_callbacks.flops.peaks.matmul_peak import Matmuls, measure


class Machine:
    """Multiplies at its rate, at most; a round takes no less than its latency. Seconds in powers of two are exact."""

    def __init__(self, *, rate=2.0**36, latency=0.0, slow=(), sizes=(256, 512, 1024, 2048), largest=8192, share=1.0):
        self.now = self.cpu_now = 0.0
        self.sizes = sizes
        self.largest = largest
        self.ran = []
        self._rate, self._latency, self._slow, self._share = rate, latency, set(slow), share

    def clock(self):
        return self.now

    def cpu_clock(self):
        return self.cpu_now

    def flops(self, size):
        return 2.0 * size**3

    def prepare(self, size):
        if size > self.largest:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self._size = size

    def run(self):
        self.ran.append(self._size)
        seconds = max(self.flops(self._size) / self._rate, self._latency)
        self.now += seconds * (16 if len(self.ran) in self._slow else 1)
        self.cpu_now += seconds * self._share


def searched(machine, seconds=1.0):
    return by_dtype(machine, ["float32"], seconds=seconds)["float32"]


def by_dtype(machine, names, **options):
    clocks = {"clock": machine.clock, "cpu_clock": machine.cpu_clock}
    return measure(torch.device("cpu"), names, **{"make": lambda device, dtype: machine} | clocks | options)


def test_the_best_rate_is_that_of_the_machine_at_any_size():
    machine = Machine()
    assert searched(machine).flops_per_second == 2.0**36
    seconds = {size: machine.ran.count(size) * machine.flops(size) / 2.0**36 for size in machine.sizes}
    assert all(seconds.values())
    assert max(seconds.values()) - min(seconds.values()) <= 2 * machine.flops(2048) / 2.0**36, "equal parts"


def test_rounds_that_were_disturbed_do_not_count():
    assert searched(Machine(slow=range(1, 10))).flops_per_second == 2.0**36
    machine = Machine(slow=[1], latency=2.0**-7)
    searched(machine)
    assert set(machine.ran) == set(machine.sizes), "a first round that is slow excludes no size"


@each_row("rate", [2.0**24, 2.0**30, 2.0**36, 2.0**42, 2.0**45])
@each_row("latency", [0.0, 2.0**-12, 2.0**-6])
def test_the_time_is_kept_unless_the_first_round_alone_takes_longer(rate, latency):
    machine = Machine(rate=rate, latency=latency)
    first = max(machine.flops(256) / rate, latency)
    searched(machine)
    assert machine.now <= max(1.0, first)
    device = Machine(rate=rate * 2**18 / matmul_peak.CALLS, latency=2.0**-12, sizes=matmul_peak.DEVICE_SIZES)
    searched(device, seconds=matmul_peak.SECONDS)
    assert device.now <= matmul_peak.SECONDS
    assert (8192 in device.ran) == (rate >= 2.0**30)


def test_a_size_that_is_likely_to_take_too_long_is_not_begun():
    machine = Machine(rate=2.0**28)  # an eighth of a second for the smallest
    searched(machine)
    assert set(machine.ran) == {256}


def test_larger_matrices_win_where_rounds_only_take_their_latency():
    machine = Machine(rate=2.0**40, latency=2.0**-6)
    assert searched(machine).size == 2048


def test_a_round_that_takes_no_time_at_all_is_no_division_by_zero():
    machine = Machine(rate=float("inf"))
    machine.clock, machine.cpu_clock = iter(step / 64 for step in range(10_000)).__next__, None
    assert searched(machine).flops_per_second > 0


@pytest.mark.parametrize("kind", ["cuda", "xpu", "privateuseone"])
def test_a_device_multiplies_matrices_up_to_8192(kind):
    assert Matmuls(torch.device(kind), torch.bfloat16).sizes == (1024, 2048, 4096, 8192)


def test_matrices_that_do_not_fit_leave_the_smaller_ones():
    for largest in (256, 512, 1024):
        machine = Machine(largest=largest)
        assert searched(machine).flops_per_second == 2.0**36
        assert max(machine.ran) == largest
    assert by_dtype(Machine(largest=128), ["float32"]) == {}


def test_all_dtypes_share_the_time_and_failures_are_left_out():
    def refuse():
        raise RuntimeError('"addmm_impl_cpu_" not implemented for this')

    machine, refusing = Machine(), Machine()
    refusing.run = refuse

    def make(_device, dtype):
        return refusing if dtype is torch.float16 else machine

    rates = by_dtype(machine, ["float32", "torch.int8", "float16", "bfloat16", "float32"], make=make)
    assert [(dtype, peak.flops_per_second) for dtype, peak in rates.items()] == [
        ("float32", 2.0**36),
        ("bfloat16", 2.0**36),
    ]
    assert machine.now <= matmul_peak.SECONDS


@pytest.mark.parametrize(
    ("share", "threads", "counts"),
    [(1.0, 1, True), (0.6, 1, True), (0.4, 1, False), (4.0, 4, True), (1.0, 4, False), (4.0, 1, True), (5.0, 4, False)],
)
def test_a_round_without_cpus_or_with_more_than_there_are_does_not_count(monkeypatch, share, threads, counts):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert bool(by_dtype(Machine(share=share), ["float32"])) == counts


def test_on_this_machine_nothing_changes_but_the_time():
    before = torch.get_rng_state(), random.getstate(), torch.get_num_threads(), torch.get_float32_matmul_precision()
    found = measure(torch.device("cpu"), ["float32"], seconds=0.05, cpu_clock=None)["float32"]
    after = torch.get_rng_state(), random.getstate(), torch.get_num_threads(), torch.get_float32_matmul_precision()
    assert found.flops_per_second > 1e6
    assert found.size in matmul_peak.SIZES["cpu"]
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
