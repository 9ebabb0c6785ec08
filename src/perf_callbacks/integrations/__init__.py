"""Integrations: each translates the events of a training framework into calls of a `Session`."""
