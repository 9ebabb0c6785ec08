"""Reduce traces of torch.profiler to a `Profile`: busy time, causes of idle time, and the longest operations."""
