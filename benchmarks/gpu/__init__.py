"""What only a GPU can tell about measuring, one part a file."""
