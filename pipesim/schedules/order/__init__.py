"""Schedules: an order of ops for each rank, its checks, its texts, and its data flow."""
