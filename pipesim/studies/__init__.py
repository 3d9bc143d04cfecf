"""Several runs: comparisons, splits by simulation, sweeps, fits, and the ladder of causes."""
