"""Integration for the Hugging Face `Trainer` and its subclasses.

from perf_callbacks.transformers import PerfCallback

trainer = Trainer(..., callbacks=[PerfCallback()])
"""

from perf_callbacks.integrations.transformers.callback import PerfCallback

__all__ = ["PerfCallback"]
