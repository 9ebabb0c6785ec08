"""Integration for a training loop with Hugging Face Accelerate."""
