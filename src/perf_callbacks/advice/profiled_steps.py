"""Profiled steps of a fit beside the steps without a profiler.

The profiler makes its steps longer, because it works on the host between operations. So the busy time of a
device counts in full, and its idle time counts only as far as the steps without a profiler can idle too. On a CPU, the
operations become longer as well. So the rules use parts of the profiled steps, not seconds.
"""

from perf_callbacks.advice.facts import Facts, MachineFacts, Measured
from perf_callbacks.kernel.records.profile_record import Profile
from perf_callbacks.profiles.idle import DATA_CAUSE, HOST, SYNC

LEAST = 0.05
"""Least share of the run for a finding from a profile, because a profile shows a few steps."""


class ProfiledSteps:
    """A profile, and the times of the other steps."""

    def __init__(self, profile: Profile, measured: Measured) -> None:
        self.profile, self._measured = profile, measured
        self.number = profile.steps or 1
        self.on_cpu = profile.timeline == "cpu"

    def part(self, seconds: float) -> str:
        """Render a time from the profile as a percentage of the time of the profiled steps."""
        steps = "a profiled step" if self.number == 1 else f"{self.number} profiled steps"
        return f"{seconds / self.profile.span_seconds:.0%} of {steps}"

    def share(self, seconds: float) -> float:
        """Return the share of the run that some busy time takes, if all steps are like the profiled steps."""
        usual, busy = self._measured.step_seconds, self.profile.busy_seconds / self.number
        if self.on_cpu:
            return self._measured.with_cpu(self._measured.share(usual * seconds / self.profile.span_seconds))
        return self._measured.share(seconds / self.number * min(1.0, usual / busy))

    def idle(self, cause: str) -> tuple[float, float]:
        """Return the least and the largest share of the run that a device idles in forward, backward and optimizer.

        The time outside of these stages belongs to other rules. The largest share is at most the time in which the
        device has no work in steps without a profiler. The cause "sync" takes its part of this time before the cause
        "host". The least share leaves out the time by which the profiled steps are longer.
        """
        measured, shown = self._measured, self.profile.idle_seconds
        room = max(0.0, measured.computing - self.profile.busy_seconds / self.number)
        longer = max(0.0, self.profile.span_seconds / self.number - measured.step_seconds)
        seconds, outside = shown.get(cause, 0.0) / self.number, 0.0
        if cause == HOST:
            room, outside = max(0.0, room - shown.get(SYNC, 0.0) / self.number), measured.stage("other")
        most = min(room, seconds)
        least = max(0.0, min(most, seconds - outside - longer))
        return measured.share(least), measured.share(most)


def profiled(machine: MachineFacts, facts: Facts, measured: Measured) -> ProfiledSteps | None:
    """Return the profile whose steps are most like the usual steps. None: no profile shows the device of the fit."""
    timeline = "cpu" if machine.accelerator is None else "device"
    known = [
        (abs(one.step_seconds - measured.step_seconds), one)
        for one in facts.profiles
        if one.timeline == timeline and one.step_seconds and one.busy_seconds > 0
    ]
    if not known or not measured.known:
        return None
    return ProfiledSteps(min(known, key=lambda pair: pair[0])[1], measured)


def on_device(machine: MachineFacts, facts: Facts, measured: Measured | None) -> bool:
    """Return True if a profile shows what the fit's device did. Then other rules need no guess."""
    return machine.accelerator is not None and measured is not None and profiled(machine, facts, measured) is not None


def unknown_loading(machine: MachineFacts, facts: Facts, measured: Measured) -> float:
    """Return the seconds per step in which the program waits for a DataLoader that the callback doesn't know."""
    steps = profiled(machine, facts, measured)
    if steps is None or measured.stage("data"):
        return 0.0
    seconds = steps.profile.idle_seconds.get(DATA_CAUSE, 0.0)
    if steps.on_cpu:
        return min(measured.unnamed, seconds / steps.profile.span_seconds * measured.step_seconds)
    return min(measured.unnamed, seconds / steps.number)


def slow_code_share(machine: MachineFacts, facts: Facts, measured: Measured, part: float) -> float | None:
    """Return the largest share of the run in which slow code with this part of all samples makes the device wait.

    None: no profile shows the device.
    """
    steps = profiled(machine, facts, measured)
    if steps is None or steps.on_cpu:
        return None
    every = sum([code.looks / code.of_all for code in facts.slow_code.values()])
    return min(part, steps.idle(HOST)[1] * part / max(part, every))
