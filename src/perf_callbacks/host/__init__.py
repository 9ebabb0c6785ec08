"""The machine: clock, garbage collector, accelerator events, files."""
