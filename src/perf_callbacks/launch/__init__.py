"""Launch: programs measured from outside, without a change to their code."""
