"""Settings: of the code, of a file, of the environment."""
