"""One fit from begin to end: what is measured, counted, changed and written, wired once for all integrations."""
