"""Loaders: pinned memory, copies that the host doesn't wait for, waits for workers."""
