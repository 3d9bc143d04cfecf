"""Codes in an event graph: the times of a node, and the kinds of its costs."""

START, MIDDLE, END = 0, 1, 2  # the times of a node
NO_COST, DURATION, TRANSFER = 0, 1, 2  # the kinds of a node's costs
