"""Stalls: the callback notices that no step ends any more, and finds the rank that causes the stall."""
