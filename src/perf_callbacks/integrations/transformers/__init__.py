"""The Hugging Face `Trainer`."""
