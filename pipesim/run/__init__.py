"""The front door: one run, a whole step, many pipelines, and every number read from spans."""
