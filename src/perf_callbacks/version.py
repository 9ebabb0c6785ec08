"""Version of the package. The build reads this file."""

__version__ = "0.1.0.dev0"
