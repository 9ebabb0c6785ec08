"""Find the peak FLOP/s of a device, which are published, set by the user or measured."""
