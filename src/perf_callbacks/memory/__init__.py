"""The memory of a training step by part, its growth, and the use of host and GPU."""
