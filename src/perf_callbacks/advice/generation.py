"""Rules `host` about reinforcement learning with TRL: completions and rewards, which belong to the stage `other`."""

from perf_callbacks.advice.facts import Facts, MachineFacts, Measured, finding
from perf_callbacks.kernel.engine.account import GENERATION, REWARDS
from perf_callbacks.kernel.records.fit_records import Finding


def generation(machine: MachineFacts, _facts: Facts, measured: Measured | None) -> Finding | None:
    """Name the time in which completions are generated. vLLM, which generates faster, needs an accelerator."""
    if measured is None or not measured.known or not measured.part(GENERATION):
        return None
    share = measured.share(measured.part(GENERATION))
    remedy = "fewer or shorter completions (num_generations, max_completion_length)"
    if machine.accelerator is not None:
        remedy = "use_vllm=True in the trainer's arguments, or " + remedy
    return finding("host", share, f"Generating completions took {share:.0%} of the run", remedy)


def rewards(_machine: MachineFacts, _facts: Facts, measured: Measured | None) -> Finding | None:
    """Name the time of reward functions and models."""
    if measured is None or not measured.known or not measured.part(REWARDS):
        return None
    share = measured.share(measured.part(REWARDS))
    remedy = "reward functions that take all completions at once"
    return finding("host", share, f"Computing rewards took {share:.0%} of the run", remedy)
