"""Records of a run, their encoding, and the journal file."""
