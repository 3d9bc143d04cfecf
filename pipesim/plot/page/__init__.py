"""Gantt charts as pages to zoom into and hover over."""
