"""Marks become steps, and steps become metrics. The engine reads no clock, and has no input or output."""
