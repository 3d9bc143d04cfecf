"""Fits to measured runs: the overheads and latencies that their costs leave out."""
