"""The local time of a step, by marks and moments that are told."""

import math
from collections import deque

from fakes import Fit
from rows import each_row

from perf_callbacks.kernel.engine.marks import BACK, WAIT
from perf_callbacks.kernel.engine.observer import Observers
from perf_callbacks.stragglers.local_times import MOST_STEPS, LocalTimes, Moment


class Trained(Fit):
    """A fit whose backwards end some time after the last gradient."""

    def __init__(self, *, reduced=True):
        self.moments, self.delay, self.reduced = deque(), 0, reduced
        self.times, observers = LocalTimes(self.moments, reduced=reduced), Observers()
        observers.add(self.times)
        super().__init__(observers=observers)

    def back(self, seconds, waits=0.0, delay=0, *, reduced=None):
        self.spend("backward", seconds)
        self.delay += delay
        self.moments.append(Moment(self.now, b"77 %d 3\n" % self.delay, self.reduced if reduced is None else reduced))
        self.now += waits

    def wait(self, seconds):
        """Wait for other ranks, whatever the stage."""
        self.turn(WAIT)
        self.now += seconds
        self.turn(BACK)

    def of_steps(self):
        self.engine.step_reader.collect()
        return self.times.take(range(1, self.number + 1))


def kept(times):
    """How many things it keeps."""
    return sum(len(value) for value in vars(times).values() if isinstance(value, list | dict | deque))


def test_the_local_time_is_from_the_end_of_a_backward_to_the_last_gradient():
    fit = Trained()
    for waits in (0.0, 1.0, 0.5):
        fit.spend("data", 0.25)
        fit.spend("forward", 1.0)
        fit.back(2.0, waits, delay=125_000_000)
        fit.spend("optimizer", 0.5)
        fit.end_step()
    first, second, third = fit.of_steps()
    assert math.isnan(first.local)
    assert (second.local, second.waited, second.gc, second.steal) == (3.75, 1.0, 0.0, 0.125)
    assert (third.local, third.waited) == (3.75, 0.5)
    assert fit.times.take([2]) == [None]


def test_waiting_in_each_of_several_backwards_is_not_local():
    fit = Trained()
    for _ in range(2):
        for waits in (0.5, 0.25):
            fit.spend("forward", 1.0)
            fit.back(2.0, waits)
        fit.step(optimizer=0.5)
    second = fit.of_steps()[1]
    assert (second.local, second.waited) == (6.5, 0.75)


def test_a_collection_after_the_backward_belongs_to_the_next_local_time():
    fit = Trained()
    for _ in range(2):
        fit.spend("forward", 1.0)
        fit.back(2.0, 1.0)
        fit.spend("optimizer", 0.5)
        fit.pause(0.125)
        fit.pause(4.0, here=False)
        fit.end_step()
    second = fit.of_steps()[1]
    assert (second.local, second.gc) == (3.0 + 0.5 + 0.125 + 4.0, 0.125)


@each_row("when", ["before the backward", "after it"])
def test_an_evaluation_makes_the_local_time_around_it_unknown(when):
    fit = Trained()
    for number in range(1, 5):
        if number == 2 and when == "before the backward":
            fit.span("evaluation", 9.0)
        fit.spend("forward", 1.0)
        fit.back(2.0)
        fit.spend("optimizer", 0.5)
        if number == 2 and when == "after it":
            fit.span("evaluation", 9.0)
        fit.end_step()
    known_steps = [not math.isnan(step.local) for step in fit.of_steps()]
    assert known_steps == [False, when == "after it", when == "before the backward", True]


def test_steps_without_a_moment_are_unknown_and_are_followed_by_known_ones():
    fit = Trained()
    for number in range(1, 6):
        fit.spend("forward", 1.0)
        if number == 3:
            fit.spend("backward", 2.0)
        else:
            fit.back(2.0)
        fit.step(optimizer=0.5)
    assert [math.isnan(step.local) for step in fit.of_steps()] == [True, False, True, False, False]


def test_steps_may_be_read_at_any_moment():
    fit = Trained()
    for _ in range(4):
        fit.spend("forward", 1.0)
        fit.engine.step_reader.collect()
        fit.back(2.0, 1.0)
        fit.engine.step_reader.collect()
        fit.step(optimizer=0.5)
    assert [step.local for step in fit.of_steps()[1:]] == [3.5] * 3


def test_time_without_a_cpu_is_spread_over_steps_by_their_length():
    """The scheduler's count is not read in each of many short steps."""
    fit, line = Trained(), b""
    for seconds, read in ((1.0, True), (1.0, False), (1.0, False), (2.0, True), (1.0, True)):
        fit.back(seconds, delay=250_000_000)
        line = fit.moments[-1].line if read else line
        fit.moments[-1] = fit.moments[-1]._replace(line=line)
        fit.end_step()
    assert [step.steal for step in fit.of_steps()[1:]] == [0.1875, 0.1875, 0.375, 0.25]


def test_steps_unknown_to_the_scheduler_are_not_kept_and_spoil_no_others():
    fit, line = Trained(), b""
    for read in (True, False, None, False, True):  # None: it says nothing
        fit.back(1.0, delay=250_000_000)
        line = fit.moments[-1].line if read else line
        fit.moments[-1] = fit.moments[-1]._replace(line=b"" if read is None else line)
        fit.end_step()
    steps = fit.of_steps()
    assert steps[2].local == 1.0
    steal = [step.steal for step in steps]
    assert math.isnan(steal[2])
    assert [steal[1], *steal[3:]] == [0.0, 0.5, 0.5]
    before = kept(fit.times)
    for _ in range(50):
        fit.back(1.0)
        fit.moments[-1] = fit.moments[-1]._replace(line=b"")
        fit.end_step()
    fit.of_steps()
    assert kept(fit.times) <= before


def test_times_that_are_never_taken_are_not_kept_for_ever():
    fit = Trained()
    for _ in range(MOST_STEPS + 300):
        fit.spend("forward", 1.0)
        fit.back(2.0)
        fit.step(optimizer=0.5)
    fit.engine.step_reader.collect()
    assert fit.times.take([1]) == [None]
    assert fit.times.take([fit.number])[0].local == 3.5


@each_row("stage", ["data", "forward", "optimizer", "other"])
def test_a_wait_in_any_stage_is_not_local(stage):
    fit = Trained()
    for _ in range(3):
        for name in ("data", "forward"):
            fit.spend(name, 1.0)
            if name == stage:
                fit.wait(4.0)
        fit.back(2.0, 0.5)
        for name in ("optimizer", "other"):
            fit.spend(name, 1.0)
            if name == stage:
                fit.wait(4.0)
        fit.end_step()
    assert [step.local for step in fit.of_steps()[1:]] == [6.0, 6.0]


def test_waits_within_a_backward_count_once():
    fit = Trained()
    for _ in range(2):
        fit.spend("forward", 1.0)
        fit.spend("backward", 1.0)
        fit.wait(0.25)
        fit.back(1.0)
        fit.wait(0.5)  # after the last gradient
        fit.now += 0.125
        fit.step(optimizer=1.0)
    second = fit.of_steps()[1]
    assert (second.local, second.waited) == (4.0, 0.875)


def test_ranks_that_meet_outside_of_backward_are_timed_from_wait_to_wait():
    fit = Trained(reduced=False)
    for number in range(3):
        fit.spend("forward", 1.0)
        fit.back(2.0)
        fit.spend("optimizer", 0.5)
        fit.wait(4.0 * number)
        fit.step(other=0.25)
    assert [step.local for step in fit.of_steps()[1:]] == [3.75] * 2


def test_ranks_that_meet_in_every_third_step_are_timed_over_three_steps():
    fit = Trained()
    for number in range(1, 10):
        fit.spend("forward", 1.0)
        fit.back(2.0, reduced=False, delay=125_000_000)
        fit.spend("optimizer", number)
        if number % 3 == 0:
            fit.wait(4.0)
        fit.end_step()
    times = fit.of_steps()
    assert [number for number, step in enumerate(times, 1) if not math.isnan(step.local)] == [6, 9]
    assert [(times[place].local, times[place].steal) for place in (5, 8)] == [
        (9.0 + 4 + 5 + 6, 0.375),
        (9.0 + 7 + 8 + 9, 0.375),
    ]


def test_without_a_meeting_no_time_is_known():
    fit = Trained(reduced=False)
    for _ in range(4):
        fit.spend("forward", 1.0)
        fit.back(2.0)
        fit.step(optimizer=0.5)
    assert all(math.isnan(step.local) for step in fit.of_steps())


def test_a_wait_in_an_evaluation_is_no_meeting():
    fit = Trained()
    for number in range(1, 5):
        fit.spend("forward", 1.0)
        fit.back(2.0)
        fit.spend("optimizer", 0.5)
        if number == 2:
            fit.engine.begin_span("evaluation", fit.now)
            fit.wait(9.0)
            fit.engine.end_span(fit.now)
        fit.end_step()
    assert [math.isnan(step.local) for step in fit.of_steps()] == [True, False, True, False]


def test_the_data_of_a_cycle_lie_between_its_meetings():
    """The ranks meet at the beginning of every second step, before the loader is asked."""
    fit = Trained(reduced=False)
    for number in range(1, 8):
        if number % 2:
            fit.wait(2.0)
        fit.spend("data", float(number))
        fit.pause(0.25)
        fit.spend("forward", 1.0)
        fit.step(optimizer=0.5)
    times = fit.of_steps()
    assert [(times[place].local, times[place].data, times[place].gc) for place in (4, 6)] == [
        (7 + 2 * 1.75, 3.0 + 4.0, 0.5),
        (11 + 2 * 1.75, 5.0 + 6.0, 0.5),
    ]


def test_waits_after_a_reduced_backward_belong_to_the_next_cycle():
    """So the time without a CPU, which is read at the last gradient, is that of the cycle."""
    fit = Trained()
    for number in range(1, 4):
        fit.spend("forward", 1.0)
        fit.back(2.0, 0.5, delay=125_000_000)
        fit.spend("optimizer", 0.5)
        fit.wait(4.0)
        fit.step(other=0.25 * number)
    assert [(step.local, step.steal) for step in fit.of_steps()[1:]] == [(3.75, 0.125), (4.0, 0.125)]


def test_steps_without_a_meeting_leave_nothing_behind_but_sums():
    fit = Trained(reduced=False)
    for _ in range(500):
        fit.spend("data", 1.0)
        fit.pause(0.25)
        fit.spend("forward", 1.0)
        fit.step(optimizer=0.5)
    fit.of_steps()
    assert kept(fit.times) <= 20
