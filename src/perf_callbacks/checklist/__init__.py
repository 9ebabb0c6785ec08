"""Startup checklist: items of one shape, each of which decides and changes at most one thing."""
