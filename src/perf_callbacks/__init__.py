"""Measure what a PyTorch training run does with its time, from inside the run.

Nothing here imports torch or a framework. The doors are modules of their own: `perf_callbacks.transformers` for the
Hugging Face `Trainer`, `perf_callbacks.lightning` and `perf_callbacks.pytorch_lightning` for the Lightning `Trainer`,
`perf_callbacks.accelerate` for a loop with Accelerate, `perf_callbacks.loop` for a plain PyTorch loop.
"""

from typing import TYPE_CHECKING, Any

from perf_callbacks.core.config import ConfigError, PerfConfig
from perf_callbacks.version import __version__

if TYPE_CHECKING:
    from perf_callbacks.core.records import Summary

__all__ = ["ConfigError", "PerfConfig", "Summary", "__version__"]


_ELSEWHERE = {
    "PerfCallback": "perf_callbacks.transformers (Hugging Face), perf_callbacks.lightning and .pytorch_lightning",
    "attach": "perf_callbacks.accelerate",
    "measure": "perf_callbacks.loop",
}


def __getattr__(name: str) -> Any:
    """Records take as long to import as all the rest: whoever wants only to set something doesn't wait for them."""
    if name == "Summary":
        from perf_callbacks.core.records import Summary  # noqa: PLC0415 only when it is asked for

        return Summary
    where = f": it is in {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{where}")
