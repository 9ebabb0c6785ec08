"""Garbage collection at the same steps on all ranks."""
