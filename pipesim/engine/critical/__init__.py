"""The critical path of a run, slack, and how the makespan depends on each cost."""
