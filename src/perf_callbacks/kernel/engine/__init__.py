"""The engine turns marks into steps, and steps into metrics. The engine reads no clock, and has no input or output."""
