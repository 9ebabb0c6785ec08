"""Records of a run, their codec and the journal file: the contract between measuring and reading."""
