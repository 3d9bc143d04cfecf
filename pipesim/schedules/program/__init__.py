"""Programs: schedules with their sends and receives as instructions."""
