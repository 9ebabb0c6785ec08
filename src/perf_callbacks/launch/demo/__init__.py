"""Demo: trains with a hidden fault, shows the verdict, and trains again with the remedy that the verdict names."""
