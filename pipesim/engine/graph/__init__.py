"""The event graph of a program, what waits for what, and its deadlocks."""
