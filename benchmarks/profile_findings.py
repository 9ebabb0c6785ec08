"""Findings from traces of others, as if all steps of a run were like the steps of the trace.

    python benchmarks/profile_findings.py TRACE.json.gz...

Waiting for data is the stage `data`; the rest of a step is forward, backward and optimizer. An option `--ddp` says that
the model is a DistributedDataParallel.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from perf_callbacks.advice import table
from perf_callbacks.advice.facts import Facts
from perf_callbacks.kernel.records.fit_records import Summary
from perf_callbacks.kernel.records.profile_record import Profile
from perf_callbacks.profiles.idle import DATA_CAUSE
from perf_callbacks.profiles.reduction import reduce_file

STEPS = 100_000


def run_of(profile: Profile) -> Summary:
    """Return the summary of a run whose steps take as long as those of a profile."""
    step = profile.step_seconds or 0.0
    data = profile.idle_seconds.get(DATA_CAUSE, 0.0) / (profile.steps or 1)
    parts = {"data": data, "forward": (step - data) / 3, "backward": (step - data) / 2, "optimizer": (step - data) / 6}
    unknown = dict.fromkeys(("included_samples", "included_tokens", "included_useful_tokens"))
    return Summary(
        run_id="",
        attempt=1,
        step=STEPS,
        steps=STEPS,
        included_steps=STEPS,
        included_seconds=STEPS * step,
        stage_seconds={f"{name}_time": STEPS * seconds for name, seconds in parts.items()},
        wall_seconds={"steps": STEPS * step},
        samples=None,
        tokens=None,
        total_samples=None,
        total_tokens=None,
        **unknown,
    )


def main() -> None:
    """Print the findings of each trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, nargs="+")
    parser.add_argument("--ddp", action="store_true")
    given = parser.parse_args()
    for path in given.traces:
        found = reduce_file(path)
        profile = replace(found, steps=found.steps or 1)
        accelerator = "cuda" if profile.timeline == "device" else None
        facts = Facts(accelerator=accelerator, profiles=(profile,), ddp=given.ddp, device_type="cuda", workers=0)
        findings = table.findings(facts, run_of(profile))
        print(path.name, "" if findings else "no finding")
        for one in findings:
            print(f"  {one.cause} {one.share or 0:.0%}: {one.evidence}; try {one.remedy}")


if __name__ == "__main__":
    main()
