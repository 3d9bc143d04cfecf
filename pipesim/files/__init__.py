"""Reading and writing files: configs, layer profiles, schedules, tables and traces."""
