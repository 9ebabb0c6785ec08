"""Public names of startup functions.

Lightning's entry points call two of the functions. The startup file that `perf-callbacks autoload enable` writes calls
the third function.
"""

from perf_callbacks.launch.autoload import arm_if_asked, lightning_callbacks, pytorch_lightning_callbacks

__all__ = ["arm_if_asked", "lightning_callbacks", "pytorch_lightning_callbacks"]
