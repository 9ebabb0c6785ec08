"""Settings from the code, a file and the environment."""
