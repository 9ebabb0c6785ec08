"""Integration for the Hugging Face `Trainer`."""
