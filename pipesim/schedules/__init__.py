"""In what order: schedules, their sends and receives, the named ones, and closed forms."""
