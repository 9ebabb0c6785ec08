"""One fit: its recorder, place, environment, and the interface of checklist items."""
