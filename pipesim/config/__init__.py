"""Config documents: their pipelines and runs, or all their faults at once."""
