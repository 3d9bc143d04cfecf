"""Sweeps: one run a point of some axes, on several processes, resumable."""
