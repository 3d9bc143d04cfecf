"""A real step in one process: the same schedule, op by op, with real gradients."""
