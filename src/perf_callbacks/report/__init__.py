"""Reports: records to text, by pure functions."""
