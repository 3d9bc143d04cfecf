"""A config document -> pipeline and run, with every fault at once."""
