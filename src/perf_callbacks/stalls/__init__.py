"""Stalls: notice that no step ends any more, and find the rank that causes the stall."""
