"""Rule `drift`: steps become longer in the course of a fit."""

from perf_callbacks.advice.facts import Facts, Measured, finding, timed
from perf_callbacks.kernel.records.fit_records import Finding
from perf_callbacks.kernel.records.shares import NOTABLE

CAUSE = "drift"

REMEDIES = {
    "data": "looking at what the loader does in later samples",
    "gc": "dropping objects that are no longer used, such as lists that grow",
}

GROWS = "looking for lists, hooks or logs that grow from step to step"


@timed
def longer(facts: Facts, measured: Measured) -> Finding | None:
    growth, share = facts.drift, saved(facts, measured)
    if growth is None or share is None:
        return None
    evidence = (
        f"Steps became {growth.last / growth.first - 1:.0%} longer in the course of the run, from "
        f"{1000 * growth.first:,.3g} to {1000 * growth.last:,.3g} ms, mostly in the stage {growth.stage}"
    )
    line = facts.host_line if growth.stage == "other" else None
    evidence += f", at {line}" if line else ""
    remedy = REMEDIES.get(growth.stage, GROWS)
    if facts.accelerator is not None and growth.stage not in REMEDIES:
        remedy += ", and for throttling" + (f" ({facts.clocks})" if facts.clocks else "")
    return finding(CAUSE, share, evidence, remedy, line=line)


def saved(facts: Facts, measured: Measured) -> float | None:
    """Share of the run that would be saved if all steps were as short as the first ones.

    None also if other programs or other ranks may have caused the drift.
    """
    growth = facts.drift
    starved = (facts.starved_share or 0.0) >= NOTABLE  # then other programs may have made the steps longer
    if growth is None or starved or growth.stage == "communication" or (facts.ddp and growth.stage == "backward"):
        return None
    return growth.share * measured.steps_seconds / measured.seconds
