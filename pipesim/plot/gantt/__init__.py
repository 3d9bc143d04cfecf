"""Gantt charts: boxes, labels, legend, titles, critical path, and the end of the step."""
