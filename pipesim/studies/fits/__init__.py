"""Fits: from measured runs to what their costs leave out."""
