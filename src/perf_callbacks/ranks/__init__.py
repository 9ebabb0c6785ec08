"""Exchange of measurements between the ranks of a job."""
