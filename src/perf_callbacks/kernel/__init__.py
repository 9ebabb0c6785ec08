"""The kernel: settings, records, engine, batches, process and fit. The kernel imports none of the features."""
