"""Count the FLOPs of training steps, predict them for other batch shapes, and compare them with the device's peak."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perf_callbacks.flops.counting.formulas import register_flop_formula

__all__ = ["register_flop_formula"]


def __getattr__(name: str) -> Any:
    """On first use, because the calculator and reports must not import torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from perf_callbacks.flops.counting import formulas  # noqa: PLC0415 imports torch

    return getattr(formulas, name)
