"""Records of a run, their encoding, and the journal file. Measuring code writes records, and reports read records."""
