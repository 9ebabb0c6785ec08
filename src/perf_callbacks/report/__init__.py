"""Records to text: pure functions."""
