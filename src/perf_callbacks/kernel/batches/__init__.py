"""Batches: their samples, tokens and shapes, read without waiting for a device."""
