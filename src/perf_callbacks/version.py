"""Version of the package; the build reads this file."""

__version__ = "0.1.0.dev0"
