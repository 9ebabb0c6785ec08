"""Launch: measure programs from outside, without a change to their code."""
