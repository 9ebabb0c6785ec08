"""Measure what a PyTorch training run does with its time, from inside the run.

Importing this module imports neither torch nor a training framework. Each integration is a module of its own:

- `perf_callbacks.transformers` is for the Hugging Face `Trainer`.
- `perf_callbacks.lightning` is for the `Trainer` of `lightning.pytorch`.
- `perf_callbacks.pytorch_lightning` is for the `Trainer` of `pytorch_lightning`.
- `perf_callbacks.accelerate` is for a loop with Accelerate.
- `perf_callbacks.loop` is for a plain PyTorch loop.
"""

from __future__ import annotations

import sys

from perf_callbacks.version import __version__

TYPE_CHECKING = False  # importing `typing` takes longer than importing this module
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from perf_callbacks.kernel.records.fit_records import Summary
    from perf_callbacks.kernel.settings.config import ConfigError, PerfConfig

__all__ = ["ConfigError", "PerfConfig", "Summary", "__version__"]


_ELSEWHERE = {
    "PerfCallback": "perf_callbacks.transformers (Hugging Face), perf_callbacks.lightning and .pytorch_lightning",
    "attach": "perf_callbacks.accelerate",
    "measure": "perf_callbacks.loop",
}


def __getattr__(name: str) -> Any:
    """Import a public name only when it is used, so that importing this package is fast."""
    if name in {"ConfigError", "PerfConfig"}:
        from perf_callbacks.kernel.settings import config  # noqa: PLC0415 only on demand

        return getattr(config, name)
    if name == "Summary":
        from perf_callbacks.kernel.records.fit_records import Summary  # noqa: PLC0415 only on demand

        return Summary
    where = f": it is in {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
    if where and _imports(sys._getframe(1)):  # noqa: SLF001 only the frame distinguishes an import from `hasattr`
        raise ImportError(f"cannot import name {name!r} from {__name__!r}{where}", name=__name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{where}")


def _imports(frame: FrameType) -> bool:
    """Return True if the frame runs `from perf_callbacks import name`.

    For such an import, Python discards the text of an `AttributeError` that `__getattr__` raises.
    """
    return frame.f_code.co_name == "_handle_fromlist"
