"""Searches over splits by simulation: what min-max leaves on the table with few micro-batches."""
