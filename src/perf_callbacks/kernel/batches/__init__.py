"""Samples, tokens and shapes of batches, without waiting for a device."""
