"""The reference engine: every rank is a SimPy process."""
