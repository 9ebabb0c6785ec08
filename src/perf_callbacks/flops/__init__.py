"""FLOPs of a training step, counted while it runs."""

from perf_callbacks.flops.formulas import register_flop_formula

__all__ = ["register_flop_formula"]
