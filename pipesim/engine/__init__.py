"""Engines: the times of every op of a schedule, from its costs. They know no schedule by name."""
