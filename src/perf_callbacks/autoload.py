"""Functions that other files name: Lightning's entry points, and the file that `autoload enable` writes."""

from perf_callbacks.launch.autoload import arm_if_asked, lightning_callbacks, pytorch_lightning_callbacks

__all__ = ["arm_if_asked", "lightning_callbacks", "pytorch_lightning_callbacks"]
