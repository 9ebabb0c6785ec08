"""A fit: its recorder, place and environment, and the shape of a checklist item."""
