"""Measure what a PyTorch training run does with its time, from inside the run.

Nothing here imports torch or a framework. The doors are modules of their own: `perf_callbacks.transformers` for the
Hugging Face `Trainer`, `perf_callbacks.loop` for a plain PyTorch loop.
"""

from perf_callbacks.core.config import ConfigError, PerfConfig
from perf_callbacks.core.records import Summary
from perf_callbacks.version import __version__

__all__ = ["ConfigError", "PerfConfig", "Summary", "__version__"]
