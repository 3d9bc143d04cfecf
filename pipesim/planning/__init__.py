"""Searches over splits by simulation: what min-max leaves on the table with few micro-batches."""

from pipesim.planning.candidates import BestSplit
from pipesim.planning.exhaustive import best_split
from pipesim.planning.refinement import refine_split

__all__ = ["BestSplit", "best_split", "refine_split"]
