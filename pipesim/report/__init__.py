"""A run as text and as trace files."""
