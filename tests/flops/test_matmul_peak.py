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


def test_the_best_rate_is_that_of_the_machine():
    machine = Machine()
    assert searched(machine).flops_per_second == 2.0**36
    assert set(machine.ran) == set(machine.sizes)


@each_row("rate", [2.0**24, 2.0**30, 2.0**36, 2.0**42, 2.0**45])
@each_row("latency", [0.0, 2.0**-12, 2.0**-6])
def test_the_time_is_kept_unless_the_first_round_alone_takes_longer(rate, latency):
    machine = Machine(rate=rate, latency=latency)
    first = max(machine.flops(256) / rate, latency)
    searched(machine)
    assert machine.now <= max(1.0, first)


def test_a_size_that_is_likely_to_take_too_long_is_not_begun():
    machine = Machine(rate=2.0**28)  # an eighth of a second for the smallest
    searched(machine)
    assert set(machine.ran) == {256}


def test_where_rounds_only_take_their_latency_the_larger_matrices_win():
    machine = Machine(rate=2.0**40, latency=2.0**-6)
    assert searched(machine).size == 2048


def test_rounds_that_were_disturbed_do_not_count():
    machine = Machine(slow=range(1, 10))
    assert searched(machine).flops_per_second == 2.0**36


def test_a_round_that_takes_no_time_at_all_is_no_division_by_zero():
    machine = Machine(rate=float("inf"))
    machine.clock, machine.cpu_clock = iter(step / 64 for step in range(10_000)).__next__, None
    assert searched(machine).flops_per_second > 0


@pytest.mark.parametrize("kind", ["cuda", "xpu", "privateuseone"])
def test_a_device_multiplies_matrices_up_to_8192(kind):
    assert Matmuls(torch.device(kind), torch.bfloat16).sizes == (1024, 2048, 4096, 8192)


@each_row("rate", [2.0**42, 2.0**46, 2.0**50, 2.0**52])  # 4 to 4504 TFLOPS
@each_row("latency", [0.0, 2.0**-12])
def test_the_time_is_kept_on_a_device_too(rate, latency):
    machine = Machine(rate=rate / matmul_peak.CALLS, latency=latency, sizes=matmul_peak.DEVICE_SIZES)
    searched(machine, seconds=matmul_peak.SECONDS)
    assert machine.now <= matmul_peak.SECONDS
    assert (8192 in machine.ran) == (rate >= 2.0**46)


@pytest.mark.parametrize("largest", [256, 512, 1024])
def test_where_the_memory_is_too_small_the_smaller_matrices_count(largest):
    machine = Machine(largest=largest)
    assert searched(machine).flops_per_second == 2.0**36
    assert max(machine.ran) == largest


def test_where_no_matrix_fits_there_is_no_peak():
    machine = Machine(largest=128)
    assert by_dtype(machine, ["float32"]) == {}


@pytest.mark.parametrize(
    ("share", "threads", "counts"),
    [(1.0, 1, True), (0.6, 1, True), (0.4, 1, False), (4.0, 4, True), (1.0, 4, False), (4.0, 1, True), (5.0, 4, False)],
)
def test_a_round_without_cpus_or_with_more_than_there_are_does_not_count(monkeypatch, share, threads, counts):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert bool(by_dtype(Machine(share=share), ["float32"])) == counts


class Refusing(Machine):
    def run(self):
        raise RuntimeError('"addmm_impl_cpu_" not implemented for this')


def test_what_was_measured_stands_with_its_conditions():
    machine = Machine()
    found = by_dtype(machine, ["float32", "torch.int8", "float32"])
    assert list(found) == ["float32"]
    best = found["float32"]
    assert best.flops_per_second == 2.0**36
    assert machine.now <= matmul_peak.SECONDS


def test_all_dtypes_share_the_time():
    machine = Machine()
    names = ["float32", "bfloat16", "float16"]
    found = by_dtype(machine, names)
    assert list(found) == names
    assert machine.now <= matmul_peak.SECONDS


def test_a_dtype_that_can_not_be_multiplied_is_left_out():
    machines = {torch.float32: Machine(), torch.float16: Refusing()}
    found = by_dtype(machines[torch.float32], ["float16", "float32"], make=lambda device, dtype: machines[dtype])
    assert list(found) == ["float32"]


def test_a_first_round_that_is_slow_excludes_no_size():
    machine = Machine(slow=[1], latency=2.0**-7)
    searched(machine)
    assert set(machine.ran) == set(machine.sizes)


def test_each_size_gets_an_equal_part_of_the_time():
    machine = Machine()
    searched(machine)
    seconds = {size: machine.ran.count(size) * machine.flops(size) / 2.0**36 for size in machine.sizes}
    assert max(seconds.values()) - min(seconds.values()) <= 2 * machine.flops(2048) / 2.0**36


def test_on_this_machine_nothing_changes_but_the_time():
    before = torch.get_rng_state(), random.getstate(), torch.get_num_threads(), torch.get_float32_matmul_precision()
    found = measure(torch.device("cpu"), ["float32"], seconds=0.05, cpu_clock=None)["float32"]
    after = torch.get_rng_state(), random.getstate(), torch.get_num_threads(), torch.get_float32_matmul_precision()
    assert found.flops_per_second > 1e6
    assert found.size in matmul_peak.SIZES["cpu"]
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def test_matrices_are_square_of_the_dtype_and_need_no_gradient():
    matmuls = Matmuls(torch.device("cpu"), torch.bfloat16)
    matmuls.prepare(8)
    matmuls.run()
    left, right, result = matmuls._matrices
    assert {matrix.dtype for matrix in matmuls._matrices} == {torch.bfloat16}
    assert torch.allclose(result, left @ right)
    assert not result.requires_grad
