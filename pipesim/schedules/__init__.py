"""Schedules: pure functions from placement and micro-batches to an order, one file a family."""

from pipesim.schedules.families import FAMILIES, Family
from pipesim.schedules.registry import (
    build_schedule,
    check_options,
    closed_form_bubble,
    schedule_names,
)

__all__ = [
    "FAMILIES",
    "Family",
    "build_schedule",
    "check_options",
    "closed_form_bubble",
    "schedule_names",
]
