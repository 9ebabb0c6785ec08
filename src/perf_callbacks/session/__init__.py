"""A fit from begin to end: measured, counted, changed and written, wired once for all integrations."""
