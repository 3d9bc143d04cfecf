"""Real steps on a process a rank: PyTorch's own schedules, timed."""
