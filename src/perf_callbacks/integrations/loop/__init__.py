"""Integration for a plain PyTorch loop."""
