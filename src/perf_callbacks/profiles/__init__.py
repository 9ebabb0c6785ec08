"""Traces of torch.profiler, reduced to a `Profile`: busy time, causes of idle time, and the heaviest operations."""
