"""A schedule with its sends and receives as instructions."""
