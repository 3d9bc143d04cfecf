"""Splits of layers into stages that keep the slowest stage as fast as possible."""
