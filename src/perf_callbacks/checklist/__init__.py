"""The startup checklist: items of one shape, each of which looks, decides, and changes at most one thing."""
