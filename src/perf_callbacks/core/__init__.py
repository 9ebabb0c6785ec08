"""Arithmetic: standard library only, no clock, no input or output."""
