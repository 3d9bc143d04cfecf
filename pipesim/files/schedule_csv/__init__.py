"""Schedules as CSV files in PyTorch's notation: reading, checking, writing."""
