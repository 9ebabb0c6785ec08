"""Demo: a small training with a hidden fault, its verdict, and the same training with the remedy of the verdict."""
