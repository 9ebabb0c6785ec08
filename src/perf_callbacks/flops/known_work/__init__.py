"""Work of a step without counting it again: by the shapes of its batches."""
