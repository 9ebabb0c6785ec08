"""Rules `shape`: sizes of matrix products that tensor cores can't use well."""

from perf_callbacks.advice.facts import Facts, Measured, finding
from perf_callbacks.flops.calculator.product_shapes import ALIGNED, Misaligned, misaligned, padded, uneven
from perf_callbacks.kernel.records.fit_records import Finding
from perf_callbacks.kernel.records.shares import LARGE


def padding(facts: Facts, _measured: Measured | None) -> Finding | None:
    """Name the cost of the size with the most FLOPs among those that are no multiple of 8."""
    if not facts.tensor_cores or facts.work is None:
        return None
    worst = next(iter(misaligned(facts.work.products)), None)
    if worst is None or worst.share < LARGE:
        return None
    name, remedy = _instead(facts, worst)
    evidence = f"{name} {worst.size:,} is no multiple of 8, in products with {worst.share:.0%} of the FLOPs"
    return finding("shape", None, evidence, remedy)


def tiles(facts: Facts, _measured: Measured | None) -> Finding | None:
    """A matrix product's last wave of tiles leaves many multiprocessors idle: advise one wave less.

    The tiles of the largest kernels are assumed. cuBLAS may choose others, so the saving is unknown.
    """
    if not facts.tensor_cores or facts.work is None or facts.multiprocessors is None:
        return None
    fixed = {size for shape in facts.weights for size in shape}
    worst = next(iter(uneven(facts.work.products, facts.multiprocessors, fixed)), None)
    if worst is None or worst.share < LARGE:
        return None
    waves = worst.waves
    evidence = (
        f"A product of {worst.rows:,} rows with {worst.share:.0%} of the FLOPs has {waves.tiles:,} tiles for "
        f"{facts.multiprocessors} multiprocessors: {waves.waves} waves, {waves.busy:.1%} busy"
    )
    return finding("shape", None, evidence, f"micro-batches of {worst.better_rows:,} rows (samples or tokens)")


def _instead(facts: Facts, worst: Misaligned) -> tuple[str, str]:
    before, after = padded(facts.weights, worst.size, worst.better)
    price = f", which takes its weights from {before:,} to {after:,} parameters" if before else ""
    if worst.size == facts.vocabulary:
        resize = "model.resize_token_embeddings(pad_to_multiple_of=64)"
        remedy = resize if facts.resizable else f"padding it to {worst.better:,}"
        return "The vocabulary of", f"{remedy}{price}"
    if worst.size == facts.head:
        return "The head size", "another number of heads: 64 and 128 are good sizes"
    if facts.weights and not before:
        padding = facts.option("pad_to_multiple_of", ALIGNED) or f"padding to a multiple of {ALIGNED} in the collator"
        return "The size", f"{padding}, or another size of the batch"
    return "The size", f"padding it to {worst.better:,}{price}"
