"""Traces of torch.profiler become a `Profile`: busy time, causes of idle time, and the longest operations."""
