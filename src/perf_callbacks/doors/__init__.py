"""What is watched behind each door: the calls of a loop, of an accelerator, of a trainer."""
