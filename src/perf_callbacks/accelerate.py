"""Integration for a training loop with Hugging Face Accelerate.

from perf_callbacks.accelerate import attach

accelerator = Accelerator(...)
attach(accelerator)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
"""

from perf_callbacks.integrations.accelerate.attachment import Attachment, attach

__all__ = ["Attachment", "attach"]
