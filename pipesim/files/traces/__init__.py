"""Formats of traces: Chrome JSON and Perfetto."""
