"""What the numbers in an event graph stand for: times of a node, and what its costs are."""

START, MIDDLE, END = 0, 1, 2  # the times of a node
NO_COST, DURATION, TRANSFER = 0, 1, 2  # what a node's costs are
