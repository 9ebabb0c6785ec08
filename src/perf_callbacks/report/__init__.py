"""Reports: pure functions that turn records into text."""
