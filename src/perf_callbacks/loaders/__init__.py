"""Data loaders: pinned memory, asynchronous copies, and waits for workers."""
