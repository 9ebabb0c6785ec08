"""Names that files outside of the package refer to: Lightning's entry points, and the file of `autoload enable`."""

from perf_callbacks.launch.autoload import arm_if_asked, lightning_callbacks, pytorch_lightning_callbacks

__all__ = ["arm_if_asked", "lightning_callbacks", "pytorch_lightning_callbacks"]
