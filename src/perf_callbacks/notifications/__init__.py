"""Events of a fit for a command of the user: stalls, slow ranks, drift and the end, as JSON on the command's stdin."""
