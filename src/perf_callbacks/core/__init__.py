"""Arithmetic: the standard library, and msgspec for records; no clock, no input or output."""
