"""The engine turns marks into steps, and steps into metrics. It reads no clock, and has no input or output."""
