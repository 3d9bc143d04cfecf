"""What waits for what: the graph of events of a program, and its deadlocks."""
