"""Peak FLOP/s of a device: published figures, a setting of the user, or a measurement."""
