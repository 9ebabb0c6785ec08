"""Turn a count into the `flops` record of the journal."""

from perf_callbacks.flops.counting.counter import FlopCounter
from perf_callbacks.flops.known_work.shaped_work import CLOSED_FORM, COUNTED
from perf_callbacks.flops.work import Work
from perf_callbacks.kernel.process.compiler_stance import anything_compiled
from perf_callbacks.kernel.records.fit_records import Flops

ENOUGH = 0.98
"""FLOPs whose coverage is below this share are a lower bound."""

_HEAVIEST = 20


def counted(
    counter: FlopCounter,
    step: int,
    tokens: int | None,
    *,
    source: str = COUNTED,
    whole_step: bool = True,
) -> Flops:
    """Make the `flops` record of a counter."""
    total, coverage, observed = counter.work(), counter.weights.coverage(), counter.observed
    six_n = 6 * counter.weights.multiplied_elements() * (tokens or 0)
    return Flops(
        step=step,
        model_flops=total.model_flops,
        hardware_flops=total.hardware_flops,
        by_phase=total.by_phase,
        by_dtype=total.by_dtype,
        source=source,
        coverage=coverage,
        uncounted=dict(observed.unknown),
        # a copy of the model runs a single forward and backward: all other work of a step is missing
        lower_bound=source != COUNTED or bool(observed.unknown) or (coverage is not None and coverage < ENOUGH),
        whole_step=whole_step,
        compiled=anything_compiled(),
        logical_flops=sum(counter.logical.values()) or None,
        causal_flops=observed.causal_flops,
        masked_flops=observed.masked_flops,
        over_six_n=total.model_flops / six_n if six_n else None,
        products=tuple((*what, flops) for what, flops in observed.products.most_common(_HEAVIEST)),
        copies=tuple((*what, size) for what, size in observed.copies.most_common(_HEAVIEST)),
        reads=dict(observed.reads),
        values_read=dict(observed.values_read),
        reductions=len(observed.reductions),
        errors=dict(counter.errors),
    )


def estimated(work: Work, step: int) -> Flops:
    """Make the `flops` record of a closed form. Without kernels to observe, most fields stay empty."""
    return Flops(
        step=step,
        model_flops=work.model_flops,
        hardware_flops=work.hardware_flops,
        by_phase=work.by_phase,
        by_dtype=work.by_dtype,
        source=CLOSED_FORM,
        coverage=None,
        uncounted={},
        lower_bound=True,
    )
