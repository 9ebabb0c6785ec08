"""Other ranks of the job: the store where they meet, and the windows that they exchange."""
