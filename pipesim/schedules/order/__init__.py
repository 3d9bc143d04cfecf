"""A schedule: per rank an order of ops, its checks, its texts, and what follows from it."""
