"""Engines: a schedule and its costs -> when every op ran. They know no schedule by name."""
