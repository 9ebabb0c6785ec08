"""Measure the memory of a training step by part, the growth of memory, and the use of host and GPU."""
