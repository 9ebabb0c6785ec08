"""A loop with Hugging Face Accelerate."""
