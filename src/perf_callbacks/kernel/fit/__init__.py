"""One fit: its recorder, its place, its environment, and the interface of checklist items."""
