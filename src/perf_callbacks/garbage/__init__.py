"""Garbage collection: the same schedule on all ranks."""
