"""Exchange between the ranks of a job: the store where the ranks meet, and the windows that they exchange."""
