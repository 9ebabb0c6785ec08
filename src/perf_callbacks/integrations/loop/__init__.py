"""A plain PyTorch loop."""
