"""The other ranks of a job: the store they meet at, and the windows they exchange."""
