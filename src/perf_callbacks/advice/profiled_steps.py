"""Estimates for the steps without a profiler, from the profiled steps of the same fit.

The profiler works on the host between operations. So a device's busy time counts in full, and its idle time as far as
it fits into a step without a profiler. On a CPU, operations become longer too: there, parts of the steps count.
"""

from perf_callbacks.advice.facts import Facts, Measured
from perf_callbacks.kernel.records.profile_record import Profile
from perf_callbacks.profiles.idle import DATA_CAUSE, HOST, SYNC


class ProfiledSteps:
    """Profile of some steps, together with the measured times of the steps without a profiler."""

    def __init__(self, profile: Profile, measured: Measured) -> None:
        self.profile, self._measured = profile, measured
        self.number = profile.steps or 1
        self.on_cpu = profile.timeline == "cpu"

    def part(self, seconds: float) -> str:
        steps = "a profiled step" if self.number == 1 else f"{self.number} profiled steps"
        return f"{seconds / self.profile.span_seconds:.0%} of {steps}"

    def share(self, seconds: float) -> float:
        """Convert busy seconds of the profile to a share of the run, as if all steps were like the profiled steps."""
        usual, busy = self._measured.step_seconds, self.profile.busy_seconds / self.number
        if self.on_cpu:
            return self._measured.with_cpu(self._measured.share(usual * seconds / self.profile.span_seconds))
        return self._measured.share(seconds / self.number * min(1.0, usual / busy))

    def idle(self, cause: str) -> tuple[float, float]:
        """Return the least and the largest share of the run in which a cause makes the device idle.

        Only idle time within forward, backward and optimizer counts. The device's idle time in steps without a profiler
        limits the largest share, and also the sum for "host" and "sync". The least share excludes the seconds by which
        the profiler makes steps longer.
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


def profiled(facts: Facts, measured: Measured) -> ProfiledSteps | None:
    """The profile whose step time is closest to the usual one; None: no profile shows the device."""
    timeline = "cpu" if facts.accelerator is None else "device"
    profiles = [
        profile
        for profile in facts.profiles
        if profile.timeline == timeline and profile.step_seconds and profile.busy_seconds > 0
    ]
    if not profiles or not measured.known:
        return None
    closest = min(profiles, key=lambda profile: abs((profile.step_seconds or 0.0) - measured.step_seconds))
    return ProfiledSteps(closest, measured)


def on_device(facts: Facts, measured: Measured | None) -> bool:
    """A rule that guesses what the device did finds nothing if a profile shows it."""
    return facts.accelerator is not None and measured is not None and profiled(facts, measured) is not None


def unknown_loading(facts: Facts, measured: Measured) -> float:
    steps = profiled(facts, measured)
    if steps is None or measured.stage("data"):
        return 0.0
    seconds = steps.profile.idle_seconds.get(DATA_CAUSE, 0.0)
    if steps.on_cpu:
        return min(measured.unnamed, seconds / steps.profile.span_seconds * measured.step_seconds)
    return min(measured.unnamed, seconds / steps.number)


def slow_code_share(facts: Facts, measured: Measured, part: float) -> float | None:
    """Upper limit for the share of the run in which the device waits for slow code; None: no profile shows a device.

    `part` is the part of all samples that have the slow code.
    """
    steps = profiled(facts, measured)
    if steps is None or steps.on_cpu:
        return None
    every = sum([code.looks / code.of_all for code in facts.slow_code.values()])
    return min(part, steps.idle(HOST)[1] * part / max(part, every))
